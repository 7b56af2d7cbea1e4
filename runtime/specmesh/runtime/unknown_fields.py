"""Refusal of fields that this build does not know; protobuf itself would skip them in silence."""

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

from specmesh.runtime.errors import UnknownField


def refuse_unknown_fields(message: Message) -> None:
    """Look through `message` and all it holds.

    Raises `UnknownField` with the path and the field number of the first one found.
    """
    _refuse(message, "")


def refuse_unknown_fields_of(message: Message, path: str = "") -> None:
    """Look at `message` itself only: in a frame, what an entry holds is that entry's failure.

    `path`: where in a request the message is. Raises `UnknownField`.
    """
    unknown = UnknownFieldSet(message)
    if len(unknown):
        number = unknown[0].field_number
        where = f"{path}.{number}" if path else str(number)
        owner = message.DESCRIPTOR.full_name
        raise UnknownField(f"unknown field number {number} in {owner} at {where}", field=where)


def _refuse(message: Message, path: str) -> None:
    refuse_unknown_fields_of(message, path)
    for descriptor, value in message.ListFields():
        if descriptor.type == FieldDescriptor.TYPE_MESSAGE:
            _refuse_in_field(descriptor, value, f"{path}.{descriptor.name}" if path else descriptor.name)


def _refuse_in_field(descriptor: FieldDescriptor, value: object, path: str) -> None:
    if isinstance(value, Message):
        _refuse(value, path)
    elif descriptor.message_type.GetOptions().map_entry:
        _refuse_in_map(descriptor, value, path)
    else:
        for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            _refuse(item, f"{path}[{index}]")


def _refuse_in_map(descriptor: FieldDescriptor, value: object, path: str) -> None:
    if descriptor.message_type.fields_by_name["value"].type == FieldDescriptor.TYPE_MESSAGE:
        for key, item in value.items():  # type: ignore[attr-defined]
            _refuse(item, f"{path}[{key}]")
