"""Requests of the API: which fields there are, what they may hold, and which of them this server does not have.

A field that would change the answer and is not supported is refused by name, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from slca.serve.errors import ApiError
from slca.serve.tools import check_parameters

MAX_STOPS = 16
MAX_TEXT = 1024  # characters of a stop or a name
_HARMLESS = (
    "user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
)  # fmt: skip

Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT)]
Ids = Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, protected_namespaces=())


class Loose(BaseModel):
    """Objects that clients send back with fields of their own."""

    model_config = ConfigDict(extra="ignore", strict=True, allow_inf_nan=False)


class Part(Loose):
    type: Literal["text"]
    text: str


class CalledFunction(Loose):
    name: Text
    arguments: str


class Call(Loose):
    id: str = ""
    type: Literal["function"] = "function"
    function: CalledFunction


class ChatMessage(Loose):
    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | list[Part] | None = None
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None

    @model_validator(mode="after")
    def something(self) -> ChatMessage:
        if self.content is None and not (self.role == "assistant" and (self.tool_calls or self.reasoning_content)):
            raise ValueError("content is missing")
        return self


class ToolFunction(Loose):
    name: Text
    description: str | None = None
    parameters: dict[str, Any] | None = None


class Tool(Loose):
    type: Literal["function"]
    function: ToolFunction


class NamedFunction(Loose):
    name: Text


class NamedTool(Strict):
    type: Literal["function"]
    function: NamedFunction


class JsonSchema(Loose):
    name: str = ""
    schema_: dict[str, Any] = Field(alias="schema", default_factory=dict)


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class StreamOptions(Strict):
    include_usage: bool | None = None
    include_obfuscation: bool | None = None


class Sampling(Strict):
    """What both kinds of completion share."""

    model: str
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: float | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: int | None = None
    stop: Text | Annotated[list[Text], Field(max_length=MAX_STOPS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    return_token_ids: bool | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None

    @model_validator(mode="before")
    @classmethod
    def without_harmless(cls, data: Any) -> Any:
        return {key: value for key, value in data.items() if key not in _HARMLESS} if isinstance(data, dict) else data

    @property
    def stops(self) -> tuple[str, ...]:
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ())

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def usage_wanted(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)

    def refused(self) -> None:
        """Raises ApiError for a field that the sampler has no answer to."""
        _only("top_p", self.top_p, (None, 1), "the sampler draws from the whole vocabulary")
        _only("presence_penalty", self.presence_penalty, (None, 0), "the sampler knows no penalties")
        _only("frequency_penalty", self.frequency_penalty, (None, 0), "the sampler knows no penalties")
        _only("logit_bias", self.logit_bias or None, (None,), "the sampler knows no biases")
        if self.stream_options is not None and not self.stream:
            raise ApiError(400, "stream_options needs stream=true", param="stream_options")


class ChatRequest(Sampling):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0)] | None = None
    response_format: ResponseFormat | None = None
    modalities: list[Literal["text"]] | None = None

    def refused(self) -> None:
        super().refused()
        _only("top_logprobs", self.top_logprobs, (None, 0), "the sampler reports the log-prob of the sampled token alone")
        if self.response_format and self.response_format.type == "json_schema" and self.response_format.json_schema is None:
            raise ApiError(400, "response_format.json_schema is missing", param="response_format.json_schema")
        if self.response_format and self.response_format.type != "json_schema" and self.response_format.json_schema is not None:
            said = f'response_format.json_schema goes with type "json_schema", not with {self.response_format.type!r}'
            raise ApiError(400, said, param="response_format.json_schema")
        for i, tool in enumerate(self.tools or ()):
            check_parameters(tool.function.parameters, f"tools[{i}].function.parameters")
        names = [tool.function.name for tool in self.tools or ()]
        if len(set(names)) < len(names):
            raise ApiError(400, "two tools have the same name", param="tools")
        if isinstance(self.tool_choice, NamedTool) and self.tool_choice.function.name not in names:
            raise ApiError(400, "tool_choice names a tool that is not in tools", param="tool_choice")
        if self.tool_choice == "required" and not names:
            raise ApiError(400, 'tool_choice="required" needs tools', param="tool_choice")


class CompletionRequest(Sampling):
    prompt: str | Ids | Annotated[list[str], Field(min_length=1)] | Annotated[list[Ids], Field(min_length=1)]
    logprobs: Annotated[int, Field(ge=0)] | None = None
    echo: bool | None = None
    best_of: int | None = None
    suffix: str | None = None
    skip_special_tokens: bool | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        whole: Any = self.prompt
        return [whole] if isinstance(whole, str) or isinstance(whole[0], int) else list(whole)

    def refused(self) -> None:
        super().refused()
        _only("logprobs", self.logprobs, (None, 0), "the sampler reports the log-prob of the sampled token alone (logprobs=0)")
        _only("echo", self.echo, (None, False), "prompts are not scored")
        _only("best_of", self.best_of, (None, 1, self.choices), "every choice is returned")
        _only("skip_special_tokens", self.skip_special_tokens, (None, False), "control tokens stay in the text")
        _only("suffix", self.suffix or None, (None,), "text is only continued")


# Fields of several forms: what they may be, as no single form that was tried could say it.
_FORMS = {
    "stop": f"must be a text of 1 to {MAX_TEXT} characters, or a list of at most {MAX_STOPS} of them",
    "prompt": "must be a text, a list of token ids (at least one, none below 0), or a list of texts or of lists of ids (at least one)",
}


def validated(model: type[Any], data: Any) -> Any:
    """`data` as `model`. Raises ApiError that names the first wrong field, never its value."""
    try:
        request = model.model_validate(data)
    except ValidationError as error:
        faults = error.errors(include_url=False, include_input=False, include_context=False)
        first = min(faults, key=lambda fault: -len(fault["loc"]))
        where = _path(first["loc"])
        said = _FORMS.get(where) or ("must be a JSON object" if first["type"] == "model_type" else first["msg"])
        raise ApiError(400, f"{where or 'body'}: {said.removeprefix('Value error, ')}"[:500], param=where or None) from None
    request.refused()
    return request


def _path(loc: tuple[int | str, ...]) -> str:
    """`messages[0].content` without the names of the forms that were tried."""
    path = ""
    for part in loc:
        if isinstance(part, str) and (not part.isidentifier() or part in ("str", "NamedTool")):
            break
        path += f"[{part}]" if isinstance(part, int) else f".{part}" if path else part
    return path[:200]


def _only(name: str, value: Any, allowed: tuple[Any, ...], why: str) -> None:
    if value not in allowed:
        raise ApiError(400, f"{name} is not supported: {why}", param=name, code="unsupported_parameter")
