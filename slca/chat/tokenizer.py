"""Tokenizers behind one small protocol: the checked-in sentencepiece model, a Hugging Face folder, a GGUF file.

The one unusual rule: `encode` has no control tokens. Text, whoever wrote it, never becomes a control id (contract 2);
only `slca.chat.template` places control ids, where the chat template itself wrote them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from slca.chat.folder_json import turn_ends
from slca.chat.strict_json import sound

if TYPE_CHECKING:
    import tokenizers

TINY_MODEL = Path(__file__).with_name("tiny.model")
TINY_TEMPLATE = Path(__file__).with_name("tiny.jinja")

# Turn ends of the supported families: each of these stops sampling where the vocabulary has it.
TURN_ENDS = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<end_of_turn>")

# Gemma files these under added tokens, yet they are ordinary text that its plain encoder cannot build by merges.
_HTML = (
    "table caption thead tbody tfoot tr th td h1 h2 h3 h4 h5 h6 blockquote strong em b i u s sub sup code a html body img "
    "span bbox ul li div iframe footer"
)
FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")  # of a Hugging Face folder: one of them
TEXT_TOKENS = frozenset(f"<{slash}{name}>" for name in _HTML.split() for slash in ("", "/"))


@runtime_checkable
class Tokenizer(Protocol):
    """What the rest of the program knows of a tokenizer.

    name: for messages. control: control string -> id (special or merely *added*: `<|im_end|>`, `<tool_call>`, `</think>`...).
    stop_ids: ids that end a turn. pad_id: fills arrays; may equal a stop id. size: largest id + 1.
    variables: template variables such as `bos_token`. chat_template: jinja source.
    """

    name: str
    control: dict[str, int]
    stop_ids: tuple[int, ...]
    pad_id: int
    size: int
    variables: dict[str, str]
    chat_template: str

    def encode(self, text: str) -> list[int]:
        """Ids of plain text. Never a control id, whatever the text says; nothing is added in front or behind."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ids, control strings included. Bytes that are not UTF-8 become U+FFFD; ids of no token say nothing."""


def load(name: str = "tiny", template: str = "") -> Tokenizer:
    """`tiny`, a Hugging Face folder, `gguf:FILE`, or `gguf:PACKAGE` (the file inside an installed package).

    template: a jinja file, or a folder with a chat_template.jinja, in the place of the tokenizer's own chat template.
    Raises FileNotFoundError when a folder is missing, ValueError when there is no usable tokenizer or chat template in it.
    """
    source = read_template(template) if template else ""
    if name == "tiny":
        return SentencePieceTokenizer(TINY_MODEL.read_bytes(), source or TINY_TEMPLATE.read_text(encoding="utf-8"))
    if name.startswith("gguf:"):
        from slca.chat.gguf_file import locate
        from slca.chat.gguf_tokenizer import from_gguf

        return from_gguf(locate(name), source)
    path = Path(name).expanduser()
    if not path.is_dir():
        raise FileNotFoundError(f"chat.tokenizer={name!r}: no such folder; give `tiny`, a Hugging Face folder or gguf:FILE")
    return from_folder(path, source)


def read_template(name: str) -> str:
    """The jinja source of `chat.template`. Raises ValueError: no such file, none in the folder, empty, or no text."""
    path = Path(name).expanduser()
    try:
        path = path / "chat_template.jinja" if path.is_dir() else path
        source = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValueError(
            f"chat.template={name!r}: {path} cannot be read ({type(error).__name__}); give a jinja file, a folder with a "
            "chat_template.jinja, or '' for the tokenizer's own template"
        ) from None
    if not source.strip():
        raise ValueError(f"chat.template={name!r}: {path} is empty")
    return source


def from_folder(path: Path, chat_template: str = "") -> FastTokenizer:
    """A Hugging Face folder (tokenizer.json and its config). Only files of the folder are read; no code in it is run."""
    from transformers import AutoTokenizer

    if not any((path / file).is_file() for file in FILES):  # transformers would make up an empty one
        raise ValueError(f"chat.tokenizer={str(path)!r}: the folder holds no tokenizer ({', '.join(FILES)})")
    try:
        loaded = AutoTokenizer.from_pretrained(str(path), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # a file of another form raises whatever met it
        said = " ".join(str(error).split())[:300]
        raise ValueError(f"chat.tokenizer={str(path)!r}: no tokenizer could be loaded from the folder ({said})") from error
    if not getattr(loaded, "is_fast", False):
        raise ValueError(f"chat.tokenizer={str(path)!r}: needs a fast tokenizer (tokenizer.json)")
    return from_transformers(loaded, name=str(path), stop_ids=turn_ends(path), chat_template=chat_template)


def from_transformers(loaded: Any, *, name: str = "", stop_ids: Iterable[int] = (), chat_template: str = "") -> FastTokenizer:
    """A loaded `transformers` fast tokenizer. stop_ids: further ids that end a turn. chat_template: in the place of its own."""
    template = chat_template or loaded.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    if not template:
        raise ValueError(
            f"the tokenizer {name or loaded.name_or_path!r} has no chat template; name one in chat.template, or add "
            "chat_template.jinja to its folder"
        )
    variables = {key: str(value) for key, value in loaded.special_tokens_map.items() if isinstance(value, str)}
    stops = {*stop_ids, *([loaded.eos_token_id] if loaded.eos_token_id is not None else [])}
    name = name or loaded.name_or_path
    return FastTokenizer(loaded.backend_tokenizer, template, variables, name=name, stop_ids=stops, pad_id=loaded.pad_token_id)


class FastTokenizer:
    """A `tokenizers` pipeline (byte-level or byte-fallback BPE) and a copy of it without control tokens."""

    def __init__(
        self,
        full: tokenizers.Tokenizer,
        chat_template: str,
        variables: dict[str, str],
        *,
        name: str = "",
        stop_ids: Iterable[int] = (),
        pad_id: int | None = None,
    ):
        """full: the pipeline with its added tokens. stop_ids: besides the turn ends of `TURN_ENDS` that the vocabulary has.

        Raises ValueError when text alone can produce a control token (then contract 2 cannot hold) or no token ends a turn.
        """
        self.full, self.chat_template, self.variables, self.name = full, chat_template, variables, name
        added = {token.content: index for index, token in full.get_added_tokens_decoder().items()}
        special = {token.content for token in full.get_added_tokens_decoder().values() if token.special}
        self.control = {text: index for text, index in added.items() if text in special or not _is_text(text)}
        self.plain = _without(full, self.control)
        self._check_plain()
        self.size = 1 + max(full.get_vocab(with_added_tokens=True).values())
        self.stop_ids = tuple(sorted({*stop_ids, *(self.control[end] for end in TURN_ENDS if end in self.control)}))
        if not self.stop_ids:
            raise ValueError("no token ends a turn: the tokenizer has neither an eos token nor one of " + ", ".join(TURN_ENDS))
        self.pad_id = self.stop_ids[0] if pad_id is None else pad_id

    def _check_plain(self) -> None:
        ids = set(self.control.values())
        for text in self.control:
            if not ids.isdisjoint(self.encode(text)):
                raise ValueError(
                    f"the tokenizer makes a control token from the plain text {text!r}: content could forge a turn"
                )

    def encode(self, text: str) -> list[int]:
        return self.plain.encode(sound(text), add_special_tokens=False).ids

    def encode_trusted(self, text: str) -> list[int]:
        """Ids as `transformers` gives them, control tokens recognised anywhere in the text: for checks, never for content."""
        return self.full.encode(text, add_special_tokens=False).ids

    def decode(self, ids: Iterable[int]) -> str:
        return self.full.decode(list(ids), skip_special_tokens=False)

    def piece(self, i: int) -> str:
        """How the vocabulary spells an id: `<0xE2>` or byte-level letters where it is part of a character, "" = no token."""
        return self.full.id_to_token(i) or ""


def _is_text(added: str) -> bool:
    return added in TEXT_TOKENS or not added.strip(" \t\n\r▁")


def _without(full: tokenizers.Tokenizer, control: dict[str, int]) -> tokenizers.Tokenizer:
    from tokenizers import Tokenizer as Pipeline

    spec = json.loads(full.to_str())
    spec["added_tokens"] = [token for token in spec["added_tokens"] if token["content"] not in control]
    spec["post_processor"] = spec["truncation"] = spec["padding"] = None
    return Pipeline.from_str(json.dumps(spec))


class SentencePieceTokenizer:
    """The tiny tokenizer: white space and digits stand alone, so a word has the same ids in a question and in JSON.

    Its control symbols are sentencepiece `control` pieces, which encoding never yields. Any text comes back byte for byte.
    """

    def __init__(self, model: bytes, chat_template: str):
        """model: a serialised sentencepiece model made by `slca.chat.train_tokenizer`."""
        from sentencepiece import SentencePieceProcessor

        self.pieces = SentencePieceProcessor(model_proto=model)
        self.chat_template, self.name = chat_template, "tiny"
        self.variables: dict[str, str] = {}
        self.size = self.pieces.vocab_size()
        self.control = {self.pieces.id_to_piece(i): i for i in range(self.size) if self.pieces.is_control(i)}
        self.pad_id = self.pieces.pad_id()
        self.stop_ids: tuple[int, ...] = (self.control["<|im_end|>"],)
        # Sentencepiece writes a space as U+2581; the character itself must survive, so it is spelled in bytes.
        self._lower_block = [self.pieces.piece_to_id(f"<0x{byte:02X}>") for byte in "▁".encode()]

    @cached_property
    def _bytes(self) -> list[bytes]:
        def of(i: int) -> bytes:
            piece = self.pieces.id_to_piece(i)
            if self.pieces.is_byte(i):
                return bytes([int(piece[3:5], 16)])
            return piece.encode() if self.pieces.is_control(i) else piece.replace("▁", " ").encode()

        return [of(i) for i in range(self.size)]

    def piece(self, i: int) -> str:
        """See `FastTokenizer.piece`."""
        return self.pieces.id_to_piece(i)

    def encode(self, text: str) -> list[int]:
        first, *others = (self.pieces.encode(part) for part in sound(text).split("▁"))
        for part in others:
            first += self._lower_block + part
        return first

    def encode_trusted(self, text: str) -> list[int]:
        """See `FastTokenizer.encode_trusted`."""
        pattern = "|".join(re.escape(word) for word in sorted(self.control, key=len, reverse=True))
        pieces: Sequence[str] = re.split(f"({pattern})", text)
        return [i for piece in pieces for i in ([self.control[piece]] if piece in self.control else self.encode(piece))]

    def decode(self, ids: Iterable[int]) -> str:
        return b"".join(self._bytes[i] for i in map(int, ids) if i < self.size).decode("utf-8", "replace")
