"""Text in and out: tokenizing, chat templates, whole characters, stop strings. No torch, no transformers."""

from specmesh.router.text.chat import ChatTemplate
from specmesh.router.text.decoding import UnsupportedDecoder
from specmesh.router.text.detokenizer import Detokenizer
from specmesh.router.text.stops import StopMatcher, check_stop_strings
from specmesh.router.text.stream import TextDelta, TextStream
from specmesh.router.text.tokenizer import Tokenizer

__all__ = [
    "ChatTemplate",
    "Detokenizer",
    "StopMatcher",
    "TextDelta",
    "TextStream",
    "Tokenizer",
    "UnsupportedDecoder",
    "check_stop_strings",
]
