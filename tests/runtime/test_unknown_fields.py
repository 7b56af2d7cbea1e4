import pytest

from specmesh.runtime.errors import UnknownField
from specmesh.runtime.unknown_fields import refuse_unknown_fields
from specmesh.v1 import router_service_pb2 as router_pb

FIELD_200 = b"\xc0\x0c\x01"  # field number 200, varint 1


def request_with(tail: bytes = b"", **fields: bytes) -> router_pb.GenerateRequest:
    """A request with unknown bytes at the top, or inside one of its messages."""
    request = router_pb.GenerateRequest(text="x", stop={"max_output_tokens": 4, "strings": ["a"]})
    for name, extra in fields.items():
        inner = getattr(request, name)
        inner.MergeFromString(extra)
        inner.SetInParent()
    request.MergeFromString(tail)
    return request


def test_a_known_request_passes() -> None:
    request = request_with()
    request.sampling.logit_bias[3] = 1.0
    refuse_unknown_fields(request)


def test_c40_an_unknown_field_is_named_by_number() -> None:
    """C40: a field number the server does not know is refused with its number."""
    with pytest.raises(UnknownField, match="200") as caught:
        refuse_unknown_fields(request_with(FIELD_200))
    assert caught.value.field == "200"
    assert caught.value.reason == "UNKNOWN_FIELD"


@pytest.mark.parametrize("name", ["sampling", "stop", "draft", "output"])
def test_c40_an_unknown_field_inside_a_message_is_named_by_path(name: str) -> None:
    """C40: also inside the messages a request holds."""
    with pytest.raises(UnknownField) as caught:
        refuse_unknown_fields(request_with(**{name: FIELD_200}))
    assert caught.value.field == f"{name}.200"


def test_c40_an_unknown_field_inside_a_list_is_named_by_index() -> None:
    """C40: also inside repeated messages."""
    request = router_pb.GenerateRequest(chat={"messages": [{"role": "user"}, {"role": "user"}]})
    request.chat.messages[1].MergeFromString(FIELD_200)
    with pytest.raises(UnknownField) as caught:
        refuse_unknown_fields(request)
    assert caught.value.field == "chat.messages[1].200"


def test_reserved_numbers_are_unknown_too() -> None:
    with pytest.raises(UnknownField, match="16"):
        refuse_unknown_fields(request_with(b"\x80\x01\x01"))
