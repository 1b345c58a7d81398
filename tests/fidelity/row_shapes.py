"""Shapes of rows as people's data have them: chat messages, and plain texts.

A shape's trainer is that of its columns: DPO with `rejected`, KTO with `label`, otherwise SFT.
"""

from __future__ import annotations

from typing import Any

Rows = list[dict[str, Any]]

CONTEXT = 48
"""Tokens of context of shapes whose names begin with a truncation mode."""

WHOLE = ("hh_", "messages", "sharegpt")
"""Shapes in which the trainers' prompt is another by design: only whole sequences are compared."""


def user(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def said(text: Any, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def pair(chosen: Any, rejected: Any, *before: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A row of messages; `before`: its prompt."""
    sides = [side if isinstance(side, list) else [said(side)] for side in (chosen, rejected)]
    asked = list(before) or [user("Why is the sky blue?")]
    return {"prompt": asked, "chosen": sides[0], "rejected": sides[1], **more}


SKY, CAT = user("Why is the sky blue?"), user("How does a cat land on its feet?")
SYSTEM = {"role": "system", "content": "Answer in one sentence."}
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "description": "Name of the city."}},
    "required": ["city"],
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": "Weather of a city.",
            "parameters": PARAMETERS,
        },
    }
]
TOOLS_JSON = (
    '[{"type": "function", "function": {"name": "weather", "description": "Weather of a city.", '
    '"parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}}]'
)
WEATHER = user("What is the weather in Rome?")


def call(city: str) -> list[dict[str, Any]]:
    return [{"type": "function", "function": {"name": "weather", "arguments": {"city": city}}}]


RESULT = {"role": "tool", "name": "weather", "content": "21 degrees"}
LIGHT, SEA = "The light of the sun is scattered.", "It mirrors the sea."
TURNS = [SKY, said(LIGHT), user("And red in the evening?")]
THOUGHT = "The sun is low then."
LENGTHY = "Write a story about a small boat. " * 12
STORY = "Once upon a time there was a small red boat on the sea. " * 8

CHAT: dict[str, Rows] = {
    "explicit_prompt": [pair(LIGHT, SEA), pair("It turns its body.", "It falls.", CAT)],
    "implicit_prompt": [{"chosen": [SKY, said(LIGHT)], "rejected": [SKY, said(SEA)]}],
    "multi_turn": [pair("Its way is longer.", "I do not know.", *TURNS)],
    "multi_turn_implicit": [
        {"chosen": [*TURNS, said("Its way is longer.")], "rejected": [*TURNS, said("No.")]}
    ],
    "parting_before_the_last_turn": [
        {
            "chosen": [SKY, said(LIGHT), CAT, said("It turns its body.")],
            "rejected": [SKY, said(SEA), user("Is it?"), said("It is.")],
        }
    ],
    "unequal_numbers_of_turns": [
        {
            "chosen": [SKY, said(LIGHT)],
            "rejected": [SKY, said(SEA), user("Is it?"), said("It is.")],
        }
    ],
    "answers_of_several_turns": [
        pair([said(LIGHT), CAT, said("It turns.")], [said(SEA), CAT, said("It falls.")], SKY)
    ],
    "system": [pair(LIGHT, SEA, SYSTEM, SKY)],
    "system_in_some_rows": [pair(LIGHT, SEA, SYSTEM, SKY), pair(LIGHT, SEA, SKY)],
    "tools": [pair("It is sunny.", "No idea.", WEATHER, tools=TOOLS)],
    "tools_as_json": [pair("It is sunny.", "No idea.", WEATHER, tools=TOOLS_JSON)],
    "tools_in_some_rows": [
        pair("It is sunny.", "No idea.", WEATHER, tools=TOOLS),
        pair(LIGHT, SEA, SKY),
    ],
    "tool_call": [
        pair(
            [said("", tool_calls=call("Rome"))],
            [said("", tool_calls=call("Oslo"))],
            WEATHER,
            tools=TOOLS,
        )
    ],
    "tool_call_without_content": [
        pair([said(None, tool_calls=call("Rome"))], [said("No idea.")], WEATHER, tools=TOOLS)
    ],
    "tool_turns": [
        pair(
            "It is 21 degrees.",
            "It is cold.",
            WEATHER,
            said("", tool_calls=call("Rome")),
            RESULT,
            tools=TOOLS,
        )
    ],
    "tool_call_then_answer": [
        pair(
            [said("", tool_calls=call("Rome")), RESULT, said("It is 21 degrees.")],
            [said("It is cold.")],
            WEATHER,
            tools=TOOLS,
        )
    ],
    "reasoning_content": [
        pair([said(LIGHT, reasoning_content=THOUGHT)], [said(SEA, reasoning_content="Water.")])
    ],
    "thinking": [pair([said(LIGHT, thinking=THOUGHT)], [said(SEA, thinking="Water.")])],
    "think_tags": [pair(f"<think>\n{THOUGHT}\n</think>\n\n{LIGHT}", f"<think></think>{SEA}")],
    "think_tags_of_earlier_turns": [
        pair(LIGHT, SEA, CAT, said(f"<think>\n{THOUGHT}\n</think>\n\nIt turns."), SKY)
    ],
    "thinking_off": [pair(LIGHT, SEA, chat_template_kwargs={"enable_thinking": False})],
    "thinking_on": [pair(LIGHT, SEA, chat_template_kwargs={"enable_thinking": True})],
    "prompt_ends_with_an_answer": [
        pair(" of the sun is scattered.", " house.", SKY, said("The light"))
    ],
    "blanks_around": [pair("  It is scattered. ", " It mirrors.", user(" Why? "))],
    "newlines_around": [pair("\n\nIt is scattered.\n", "\tIt mirrors.\n\n", user("\nWhy?\n"))],
    "unicode": [pair("Größe: ﬁne 天空 🌞 e\u0301", "Größe: fine 天 ☀️", user("Wie groß? ½"))],
    "crlf": [pair("It is\r\nscattered.", "It\r\nmirrors.", user("Why?\r\nSay."))],
    "empty_answer": [pair(LIGHT, "")],
    "equal_answers": [pair(LIGHT, LIGHT)],
    "one_begins_like_the_other": [pair("The light", LIGHT)],
    "special_tokens_written": [pair("<|im_end|> and </s>", "<eos> <end_of_turn>")],
    "parts": [
        pair(
            [said([{"type": "text", "text": LIGHT}])],
            [said([{"type": "text", "text": SEA}])],
            user([{"type": "text", "text": "Why is the sky blue?"}]),
        )
    ],
    "names_of_speakers": [
        pair([said(LIGHT, name="b")], [said(SEA, name="b")], {**SKY, "name": "a"})
    ],
    "further_columns": [pair(LIGHT, SEA, score_chosen=8.0, score_rejected=2.0, source="x")],
    "prompt_repeated_as_text": [
        {
            "prompt": SKY["content"],
            "prompt_id": "a",
            "chosen": [SKY, said(LIGHT)],
            "rejected": [SKY, said(SEA)],
        }
    ],
    "prompt_completion": [{"prompt": [SKY], "completion": [said(LIGHT)]}],
    "prompt_completion_tools": [
        {"prompt": [WEATHER], "completion": [said("", tool_calls=call("Rome"))], "tools": TOOLS}
    ],
    "messages": [{"messages": [SYSTEM, SKY, said(LIGHT)]}, {"messages": [*TURNS, said("Yes.")]}],
    "sharegpt": [
        {
            "conversations": [
                {"from": "user", "value": "Why?"},
                {"from": "assistant", "value": LIGHT},
            ]
        }
    ],
    "kto": [
        {"prompt": [SKY], "completion": [said(LIGHT)], "label": True},
        {"prompt": [SKY], "completion": [said(SEA)], "label": False},
    ],
    "keep_start_long_answer": [pair(STORY, STORY[9:], user("A story, please."))],
    "keep_end_long_prompt": [pair("It sails.", "It sinks.", user(LENGTHY))],
    "keep_end_long_answer": [pair(STORY, STORY[9:], user("A story, please."))],
}


def texts(prompt: str, chosen: str, rejected: str) -> dict[str, Any]:
    return {"prompt": prompt, "chosen": chosen, "rejected": rejected}


_HH = "\n\nHuman: Why is the sky blue?\n\nAssistant:"

TEXT: dict[str, Rows] = {
    "blank_before_answer": [texts("Why is the sky blue?", " It is scattered.", " It mirrors.")],
    "no_blank": [texts("Why is the sky blue?", "It is scattered.", "It mirrors.")],
    "trailing_blanks": [texts("Why?", " It is scattered.  ", " It mirrors. \n")],
    "tabs": [texts("if one:\n", "\tpass", "\t\tpass")],
    "code": [texts("def add(one, two):\n", "    return one + two\n", "  return one\n")],
    "ends_with_eos": [texts("Why?", " It is scattered.</s>", " It mirrors.")],
    "eos_then_blank": [texts("Why?", " It is scattered.</s> ", " It mirrors.</s></s>")],
    "bos_written": [texts("<s>Why?", " It is scattered.", " It mirrors.")],
    "empty_text": [texts("Why is the sky blue?", "", " It mirrors.")],
    "prompt_ends_with_blank": [texts("Why is the sky blue? ", "It is scattered.", "It mirrors.")],
    "prompt_ends_with_newlines": [texts("Why?\n\n", "It is scattered.", "\nIt mirrors.")],
    "prompt_ends_inside_a_word": [texts("The light is scat", "tered in the air.", "ter.")],
    "merges_over_the_boundary": [texts("Human: What is the wea", "ther like?", "pon?")],
    "one_merges_the_other_not": [texts("It is the sm", "all red boat", " of it")],
    "unicode_text": [texts("Wie groß? ½", " Größe ﬁne 天空 🌞", " e\u0301 ☀️ \u2028 x")],
    "combining_over_the_boundary": [texts("cafe", "\u0301 is open", " is open")],
    "crlf_text": [texts("Why?\r\n", "It is\r\nscattered.", "It\rmirrors.")],
    "null_character": [texts("Why?", " a\u0000b", " a b")],
    "special_token_in_the_middle": [texts("Why?", " It is</s> scattered.", " <s>It<pad> mirrors.")],
    "equal_texts": [texts("Why?", " It is scattered.", " It is scattered.")],
    "implicit_text": [{"chosen": "Sky: it is scattered.", "rejected": "Sky: the sea."}],
    "implicit_text_blank": [{"chosen": "Sky: blue light.", "rejected": "Sky: red light."}],
    "implicit_beginning": [{"chosen": "The light", "rejected": "The light of the sun"}],
    "hh_one_turn": [{"chosen": f"{_HH} It is scattered.", "rejected": f"{_HH} It mirrors."}],
    "hh_turns": [
        {
            "chosen": f"{_HH} Light.\n\nHuman: So?\n\nAssistant: It is scattered.",
            "rejected": f"{_HH} Light.\n\nHuman: So?\n\nAssistant: I can't say.",
        }
    ],
    "completion_text": [{"prompt": "Why is the sky blue?", "completion": " It is scattered."}],
    "completion_no_blank": [{"prompt": "Why is the sky bl", "completion": "ue? Light.</s>"}],
    "kto_text": [
        {"prompt": "Why?", "completion": " It is scattered.", "label": True},
        {"prompt": "Why?", "completion": " It mirrors.", "label": False},
    ],
    "keep_start_text": [texts("A story.", f" {STORY}", f" {STORY[9:]}")],
    "keep_start_long_prompt": [texts(LENGTHY, " It sails.", " It sinks."), texts("A", "b", "c")],
    "keep_end_text": [texts(LENGTHY, " It sails.", " It sinks.")],
    "keep_end_long_text": [texts("A story.", f" {STORY}", f" {STORY[9:]}")],
}
