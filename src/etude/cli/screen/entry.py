"""The entry where the user types: several lines, a history, completion of commands."""

from __future__ import annotations

from textual import events
from textual.message import Message
from textual.widgets import TextArea

COMMANDS = {
    "/diff": "look at everything changed, file by file",
    "/apply": "write all changes into the folder",
    "/undo": "take back what the last request changed",
    "/resume": "switch to another session of this folder",
    "/help": "keys and commands",
    "/quit": "leave; the session can be resumed",
}


def completions(text: str) -> list[str]:
    return [name for name in COMMANDS if name.startswith(text)] if text.startswith("/") and " " not in text else []


class Entry(TextArea):
    class Submitted(Message):
        def __init__(self, text: str) -> None:
            super().__init__()
            self.text = text

    def __init__(self) -> None:
        super().__init__(
            id="entry", compact=True, highlight_cursor_line=False, placeholder="Ask for something, or / for commands"
        )
        self.sent: list[str] = []
        self._place = 0
        """Index into the history of sent texts. The history's length stands for the text being typed."""
        self._draft = ""

    async def _on_key(self, event: events.Key) -> None:
        match event.key:
            case "enter":
                self._submit()
            case "shift+enter" | "alt+enter" | "ctrl+j":
                self.insert("\n")
            case "tab" if matches := completions(self.text):
                self.text = matches[0] if len(matches) == 1 else _common(matches)
                self.move_cursor(self.document.end)
            case "up" if self.cursor_location[0] == 0 and self.sent:
                self._recall(self._place - 1)
            case "down" if self.cursor_location[0] == self.document.line_count - 1 and self._place < len(self.sent):
                self._recall(self._place + 1)
            case _:
                await super()._on_key(event)
                return
        event.stop()
        event.prevent_default()

    def remember(self, text: str) -> None:
        if not self.sent or self.sent[-1] != text:
            self.sent.append(text)
        self._place = len(self.sent)

    def _submit(self) -> None:
        text = self.text.strip()
        if not text:
            return
        self.text = ""
        self.remember(text)
        self.post_message(self.Submitted(text))

    def _recall(self, place: int) -> None:
        if not 0 <= place <= len(self.sent):
            return
        if self._place == len(self.sent):
            self._draft = self.text
        self._place = place
        self.text = self.sent[place] if place < len(self.sent) else self._draft
        self.move_cursor(self.document.end)


def _common(texts: list[str]) -> str:
    shared = texts[0]
    while not all(text.startswith(shared) for text in texts):
        shared = shared[:-1]
    return shared
