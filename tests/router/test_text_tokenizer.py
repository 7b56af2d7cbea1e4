"""Encoding, chat templates and what bounds them."""

import gc
import json
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime

import pytest
from tiny_tokenizers import byte_level_bpe, to_bytes, word_level
from tokenizers import processors

from specmesh.router.text import ChatTemplate, Tokenizer
from specmesh.runtime.errors import InvalidValue, UnsupportedOption

CHATML = (
    "{{ bos_token }}{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message.content }}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
HELLO = [("system", "Be brief."), ("user", "Hello <b>")]


def render(source: str, **options: object) -> str:
    """HELLO through a template, its process ended afterwards."""
    template = ChatTemplate(source, {"bos_token": "<s>"}, **options)  # type: ignore[arg-type]
    try:
        return template.render(HELLO)
    finally:
        template.close()


def refusal_of(source: str, **options: object) -> str:
    with pytest.raises(InvalidValue) as refusal:
        render(source, **options)
    assert refusal.value.field == "chat"
    return refusal.value.message


def test_messages_are_rendered_as_the_template_says() -> None:
    expected = (
        "<s><|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello <b><|im_end|>\n<|im_start|>assistant\n"
    )
    assert render(CHATML) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        (
            "{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}{{ m.role }}{% endfor %}",
            "user",
        ),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("{% generation %}{{ messages[1].role }}{% endgeneration %}", "user"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ 'tools' if tools else 'none' }}", "none"),
        ("{{ strftime_now('%d %b %Y') }}", "03 Feb 2024"),
    ],
)
def test_templates_find_what_transformers_gives_them(source: str, expected: str) -> None:
    assert render(source, now=lambda: datetime(2024, 2, 3)) == expected


def test_a_model_without_template_refuses_chat_and_names_the_field() -> None:
    with pytest.raises(UnsupportedOption) as refusal:
        Tokenizer(to_bytes(word_level())).render_chat(HELLO)
    assert refusal.value.field == "chat"


@pytest.mark.parametrize(
    ("messages", "field"), [([], "chat.messages"), ([("user", "a"), ("tool", "b")], "chat.messages[1].role")]
)
def test_bad_messages_are_refused_by_name(messages: list[tuple[str, str]], field: str) -> None:
    with pytest.raises(InvalidValue) as refusal:
        ChatTemplate(CHATML, {}).render(messages)
    assert refusal.value.field == field


def test_a_refusal_carries_the_templates_own_words_and_never_a_message() -> None:
    assert refusal_of("{{ raise_exception('user comes first') }}").endswith("user comes first")
    assert "Hello" not in refusal_of("{{ raise_exception('no ' + messages[1].content) }}")
    assert "Hello" not in refusal_of("{{ messages[1].content.missing.deeper }}")


@pytest.mark.parametrize(
    "source",
    [
        "{% for %}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages.append(1) }}",
        "{{ 'a' * 10 ** 10 }}",
        "{% set ns = namespace(x='a') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{% for i in range(99999) %}{{ 'a' * 999 }}{% endfor %}",
    ],
)
def test_a_broken_or_hostile_template_is_an_answer(source: str) -> None:
    refusal_of(source, max_characters=1 << 20, render_seconds=10.0)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{{ (9 ** 9) ** (9 ** 9) }}",
    ],
)
def test_a_template_that_does_not_end_is_ended(source: str) -> None:
    assert "too long" in refusal_of(source, render_seconds=0.5)


def test_a_prompt_may_have_as_many_characters_as_allowed_and_no_more() -> None:
    assert render("{{ 'é🙂' * 5 }}", max_characters=10) == "é🙂" * 5
    assert refusal_of("{{ 'é🙂' * 5 }}x", max_characters=10).endswith("PromptTooLong")


def test_after_a_kill_the_next_request_works() -> None:
    spin = "{% for i in range(99999) %}{% for i in range(99999) %}{% endfor %}{% endfor %}"
    source = "{% if messages[0].content == 'spin' %}" + spin + "{% endif %}{{ messages[0].content }}"
    template = ChatTemplate(source, {}, render_seconds=0.5)
    with pytest.raises(InvalidValue, match="too long"):
        template.render([("user", "spin")])
    assert template.render([("user", "fine")]) == "fine"
    template.close()


def test_threads_may_share_a_template() -> None:
    template = ChatTemplate("{{ messages[0].content }}", {})
    texts = [str(i) * 100 for i in range(8)]
    with ThreadPoolExecutor(8) as pool:
        seen = list(pool.map(lambda text: template.render([("user", text)]), texts))
    assert seen == texts
    template.close()


def test_a_dropped_template_ends_its_process() -> None:
    template = ChatTemplate("x", {})
    template.render(HELLO)
    process = template._process
    assert process is not None
    del template
    gc.collect()
    assert process.poll() is not None


def test_a_long_conversation_passes_whole() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}", {})
    text = "é🙂" * 400_000
    assert template.render([("user", text), ("user", text)]) == text + text
    template.close()


def test_chat_text_is_encoded_without_a_second_bos() -> None:
    fast = byte_level_bpe()
    fast.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    tokenizer = Tokenizer(
        to_bytes(fast), chat_template="{{ bos_token }}{{ messages[0].content }}", special_tokens={"bos_token": "<s>"}
    )
    rendered = tokenizer.render_chat([("user", "The fox")])
    assert tokenizer.encode_text("The fox") == tokenizer.encode_rendered(rendered)
    assert tokenizer.encode_text("The fox").count(0) == 1
    tokenizer.close()


def test_a_prompt_is_never_cut_or_padded_by_what_the_file_says() -> None:
    fast = word_level()
    fast.enable_truncation(2)
    fast.enable_padding(length=8)
    assert len(Tokenizer(to_bytes(fast)).encode_text("alpha beta gamma alpha")) == 4


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", json.dumps({"model": 1}).encode()])
def test_what_is_no_tokenizer_is_refused(content: bytes) -> None:
    with pytest.raises(ValueError, match=r"tokenizer\.json"):
        Tokenizer(content)
