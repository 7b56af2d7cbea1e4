"""A model's tokenizer as the verifier ships it: text and chat to ids, ids to text, without transformers."""

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache

from tokenizers import Tokenizer as FastTokenizer

from specmesh.router.text.bounds import most_characters
from specmesh.router.text.chat import ChatTemplate
from specmesh.router.text.decoding import build_stages
from specmesh.router.text.detokenizer import Detokenizer
from specmesh.router.text.stops import StopMatcher
from specmesh.router.text.stream import TextStream

TOKEN_CACHE = 65_536


class Tokenizer:
    """What `VerifierService.GetTokenizer` describes; safe to share between threads.

    `tokenizer_json`: the bytes of tokenizer.json. Raises ValueError when they are none, or when its decoder has no
    incremental form (`UnsupportedDecoder`).
    """

    def __init__(
        self,
        tokenizer_json: bytes,
        *,
        chat_template: str | ChatTemplate = "",
        special_tokens: Mapping[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
    ) -> None:
        self._fast = _load(tokenizer_json)
        content = json.loads(tokenizer_json)
        self._decoder = content.get("decoder")
        self._most_characters = most_characters(content)
        build_stages(self._decoder)
        self.eos_token_ids = tuple(eos_token_ids)
        added = self._fast.get_added_tokens_decoder().values()
        self._special = frozenset(token.content for token in added if token.special)
        self._chat = (
            chat_template
            if isinstance(chat_template, ChatTemplate)
            else ChatTemplate(chat_template, special_tokens or {})
        )
        self._token_of = lru_cache(TOKEN_CACHE)(self._look_up)

    def least_tokens(self, num_characters: int) -> int:
        """Tokens that a text of so many characters has at least; 0 where its length says nothing of them."""
        return -(-num_characters // self._most_characters) if self._most_characters else 0

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text, with the special tokens that the model puts around one."""
        return list(self._fast.encode(text, add_special_tokens=True).ids)

    def render_chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """The text of (role, content) messages. Blocks while the template renders; raises as `ChatTemplate.render`."""
        return self._chat.render(messages)

    def encode_rendered(self, text: str) -> list[int]:
        """Ids of what `render_chat` gave: the template writes its special tokens itself."""
        return list(self._fast.encode(text, add_special_tokens=False).ids)

    def detokenizer(self) -> Detokenizer:
        """For one text."""
        return Detokenizer(self._token_of, build_stages(self._decoder))

    def stream(self, stop_strings: Sequence[str] = ()) -> TextStream:
        """For one session. Raises `InvalidValue` naming the stop string that cannot be used."""
        return TextStream(self.detokenizer(), StopMatcher(stop_strings))

    def decode(self, token_ids: Sequence[int]) -> str:
        """The whole text at once; what a stream of these ids shows, all in all."""
        detokenizer = self.detokenizer()
        return "".join(detokenizer.push(token_id) for token_id in token_ids) + detokenizer.finish()

    def close(self) -> None:
        """End the process that renders chat templates."""
        self._chat.close()

    def _look_up(self, token_id: int) -> str | None:
        token: str | None = self._fast.id_to_token(token_id)
        return None if token in self._special else token


def _load(tokenizer_json: bytes) -> FastTokenizer:
    """Prompts are never cut or padded, whatever the file says."""
    try:
        fast = FastTokenizer.from_str(tokenizer_json.decode())
    except Exception as error:
        raise ValueError(f"not a tokenizer.json: {error}") from error
    fast.no_truncation()
    fast.no_padding()
    return fast
