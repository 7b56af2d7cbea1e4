"""The input of a `GenerateRequest` to token ids: what cannot fit is refused by its size, before any work on it."""

from collections.abc import Callable, Sequence

from specmesh.router.offer import Offer, TextModel
from specmesh.runtime.errors import ContextTooLong, InvalidValue, UnsupportedOption
from specmesh.v1 import router_service_pb2 as pb

ROLES = ("system", "user", "assistant")


def read_prompt(request: pb.GenerateRequest, offer: Offer) -> tuple[int, ...]:
    """Ids of the request's input. Raises a `MeshError` that names the field."""
    kind = request.WhichOneof("input")
    if kind == "tokens":
        field, prompt = "tokens.ids", _tokens(request.tokens, offer)
    elif kind == "text":
        field, prompt = "text", _plain_text(request.text, offer)
    elif kind == "chat":
        field, prompt = "chat.messages", _chat(request.chat, offer)
    else:
        raise InvalidValue("input", "one of text, tokens and chat is required")
    if not prompt:
        raise InvalidValue(field, "the prompt is empty")
    return prompt


def _tokens(given: pb.TokenIds, offer: Offer) -> tuple[int, ...]:
    _check_length("tokens.ids", len(given.ids), offer)
    check_ids("tokens.ids", given.ids, offer)
    return tuple(given.ids)


def _check_length(field: str, num_tokens: int, offer: Offer, at_least: str = "") -> None:
    limit = offer.target.info.max_context_tokens
    if num_tokens >= limit:
        size = f"{at_least}{num_tokens} tokens"
        raise ContextTooLong(field, f"{size}; the context of {limit} tokens must hold at least one more")


def _plain_text(given: str, offer: Offer) -> tuple[int, ...]:
    text = _text(offer, "text", [given])
    return _encoded("text", given, text, text.encode_text, offer)


def _encoded(
    field: str, given: str, text: TextModel, encode: Callable[[str], Sequence[int]], offer: Offer
) -> tuple[int, ...]:
    _check_length(field, text.least_tokens(len(given)), offer, "at least ")
    token_ids = tuple(encode(given))
    _check_length(field, len(token_ids), offer)
    return token_ids


def _chat(chat: pb.ChatInput, offer: Offer) -> tuple[int, ...]:
    if not chat.messages:
        raise InvalidValue("chat.messages", "at least one message is required")
    if len(chat.messages) > offer.max_messages:
        count = f"{len(chat.messages)} messages; limits.max_messages is {offer.max_messages}"
        raise InvalidValue("chat.messages", f"{count}: leave out or join older ones")
    text = _text(offer, "chat.messages", [message.content for message in chat.messages])
    for index, message in enumerate(chat.messages):
        if message.role not in ROLES:
            raise InvalidValue(f"chat.messages[{index}].role", f"must be one of {', '.join(ROLES)}")
    rendered = text.render_chat([(message.role, message.content) for message in chat.messages])
    return _encoded("chat.messages", rendered, text, text.encode_rendered, offer)


def _text(offer: Offer, field: str, texts: list[str]) -> TextModel:
    if offer.text is None:
        raise UnsupportedOption(field, "this target has no tokenizer; send token ids")
    size = sum(len(text.encode()) for text in texts)
    if size > offer.max_text_bytes:
        raise ContextTooLong(field, f"{size} bytes of text; limits.max_text_bytes is {offer.max_text_bytes}")
    return offer.text


def check_ids(field: str, token_ids: Sequence[int], offer: Offer) -> None:
    """Raises `InvalidValue` naming the first that is no id of the vocabulary."""
    size = offer.target.info.vocabulary_size
    if token_ids and max(token_ids) >= size:
        index = next(index for index, token in enumerate(token_ids) if token >= size)
        raise InvalidValue(f"{field}[{index}]", f"not an id of the vocabulary, which has {size}")


def read_continuation(
    request: pb.GenerateRequest, prompt: tuple[int, ...], limit: int, offer: Offer
) -> tuple[int, ...]:
    """Output that the client has already. Raises a `MeshError` that names the field."""
    token_ids = request.continuation_token_ids
    if len(token_ids) > limit:
        raise InvalidValue("continuation_token_ids", f"{len(token_ids)} tokens; max_output_tokens is {limit}")
    room = offer.target.info.max_context_tokens - len(prompt)
    if len(token_ids) > room:
        raise ContextTooLong("continuation_token_ids", f"{len(token_ids)} tokens; the context has room for {room}")
    check_ids("continuation_token_ids", token_ids, offer)
    return tuple(token_ids)
