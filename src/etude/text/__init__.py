"""Converts messages to token ids and back: the tokenizer, the chat formats and the tool-call grammar."""

from etude.text.calls import Arguments, CallSchema, Kind, Parameter, call_name, format_call, parse_call
from etude.text.compact import CompactFormat
from etude.text.format import Exchange, Format, ParsedCall, ParsedTurn, TextTokenizer, TokenizerLike, following
from etude.text.opening import open_tokenizer
from etude.text.tokenizer import SPECIAL, Special, Tokenizer
from etude.text.vocabulary import TokenizerError

__all__ = [
    "SPECIAL",
    "Arguments",
    "CallSchema",
    "CompactFormat",
    "Exchange",
    "Format",
    "Kind",
    "Parameter",
    "ParsedCall",
    "ParsedTurn",
    "Special",
    "TextTokenizer",
    "Tokenizer",
    "TokenizerError",
    "TokenizerLike",
    "call_name",
    "following",
    "format_call",
    "open_tokenizer",
    "parse_call",
]
