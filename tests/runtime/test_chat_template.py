"""Templates are rendered as transformers renders them, and cannot do more than render."""

from __future__ import annotations

import datetime
from typing import Any

import pytest

import pyllamakv as kv
from pyllamakv.runtime.chat_template import ChatTemplate

CHAT = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]


def render(source: str, messages: Any = CHAT, **keywords: Any) -> str:
    return ChatTemplate(source, bos_token="<s>", eos_token="</s>").render(messages, **keywords)


def test_the_models_own_template(smollm2: kv.Model) -> None:
    assert smollm2.apply_chat_template([{"role": "system", "content": "S"}, *CHAT]) == (
        "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n"
        "<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert smollm2.apply_chat_template(CHAT, add_generation_prompt=False).endswith("Hello<|im_end|>\n")


def test_blocks_take_their_line_with_them() -> None:
    lines = ["{{ bos_token }}", "{% for m in messages %}", "    {% if m.role == 'user' %}", "{{ m.content }}"]
    lines += ["    {% endif %}", "{% endfor %}", ""]
    assert render("\n".join(lines)) == "<s>\nHi\n"


def test_json_is_not_escaped_for_html() -> None:
    tools = [{"name": "größer", "if": "a < b & 'c'"}]
    assert render("{{ tools | tojson }}", tools=tools) == '[{"name": "größer", "if": "a < b & \'c\'"}]'
    assert render("{{ tools | tojson(indent=2) }}", tools=[1]) == "[\n  1\n]"


def test_dates_loop_controls_and_variables() -> None:
    assert render("{{ strftime_now('%Y') }}") == str(datetime.datetime.now().astimezone().year)
    assert render("{% for m in messages %}{% break %}{% endfor %}x") == "x"
    assert render("{{ documents is none }} {{ add_generation_prompt }} {{ extra }}", extra=7) == "True True 7"


def test_a_refusal_shows_the_templates_words() -> None:
    with pytest.raises(kv.ArgumentError, match="refuses these messages: no system here"):
        render("{{ raise_exception('no system here') }}")


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "is no valid Jinja"),
        ("{{ nothing.at.all }}", "failed: UndefinedError"),
        ("{{ 1 / 0 }}", "failed: ZeroDivisionError"),
        ("{{ messages.append(1) }}", "failed: SecurityError"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "failed: SecurityError"),
        ("{{ messages[0].content + 1 }}", "failed: TypeError"),
    ],
)
def test_what_fails_is_one_error(source: str, message: str) -> None:
    with pytest.raises(kv.ArgumentError, match=message):
        render(source)


@pytest.mark.parametrize("messages", [None, "text", [1], [["a"]], 5])
def test_messages_have_to_be_dicts(messages: Any) -> None:
    with pytest.raises(kv.ArgumentError, match="messages has to be a list of dicts"):
        render("x", messages)
