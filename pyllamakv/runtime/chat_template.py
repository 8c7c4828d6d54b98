"""Chat templates, rendered as transformers renders them (``transformers/utils/chat_template_utils.py``).

Templates come with the model, from anywhere: they run in Jinja's immutable sandbox, which gives them no way out.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

import jinja2
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ArgumentError

__all__ = ["ChatTemplate"]


class _Refused(jinja2.TemplateError):
    """The template called ``raise_exception``."""


def _raise(message: str) -> None:
    raise _Refused(message)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes for HTML, which a model should not see.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _strftime_now(pattern: str) -> str:
    return datetime.datetime.now().astimezone().strftime(pattern)


class ChatTemplate:
    """One compiled template."""

    def __init__(self, source: str, *, bos_token: str = "", eos_token: str = "") -> None:
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as err:
            raise ArgumentError(f"the model's chat template is no valid Jinja: {err}") from err
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(
        self,
        messages: Sequence[dict[str, Any]],
        *,
        add_generation_prompt: bool = True,
        tools: Sequence[dict[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt.

        Raises:
            ArgumentError: the messages are no list of dicts, or the template refuses them; with its words.
        """
        try:
            chat = [dict(message) for message in messages]
        except (TypeError, ValueError):
            raise ArgumentError("messages has to be a list of dicts like {'role': 'user', 'content': 'Hi'}") from None
        given = {**self._tokens, **variables}
        try:
            return self._template.render(
                messages=chat, tools=tools, documents=None, add_generation_prompt=add_generation_prompt, **given
            )
        except _Refused as err:
            raise ArgumentError(f"the model's chat template refuses these messages: {err}") from err
        except Exception as err:  # a template can fail in every way that Python can
            raise ArgumentError(f"the model's chat template failed: {type(err).__name__}: {err}") from err
