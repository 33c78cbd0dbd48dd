"""Chat formats of published models, which write and parse conversations as token ids.

One file per model family; `grammar` writes and parses the turns of all of them.
"""

from etude.text.formats.chatml import ChatMLFormat, Qwen25Format
from etude.text.formats.deepseek_v3 import DeepSeekV3Format, DeepSeekV31Format
from etude.text.formats.glm45 import GLM45Format
from etude.text.formats.kimi_k2 import KimiK2Format
from etude.text.formats.llama3 import Llama3Format
from etude.text.formats.marked import MarkedFormat
from etude.text.formats.qwen3 import Qwen3Format
from etude.text.formats.qwen3_coder import Qwen3CoderFormat

FORMATS: dict[str, type[MarkedFormat]] = {
    "qwen3": Qwen3Format,
    "qwen3-coder": Qwen3CoderFormat,
    "qwen2.5": Qwen25Format,
    "glm4.5": GLM45Format,
    "llama3": Llama3Format,
    "kimi-k2": KimiK2Format,
    "deepseek-v3": DeepSeekV3Format,
    "deepseek-v3.1": DeepSeekV31Format,
    "chatml": ChatMLFormat,
}
"""Chat formats by the names that recipes use."""

__all__ = [
    "FORMATS",
    "ChatMLFormat",
    "DeepSeekV3Format",
    "DeepSeekV31Format",
    "GLM45Format",
    "KimiK2Format",
    "Llama3Format",
    "Qwen3CoderFormat",
    "Qwen3Format",
    "Qwen25Format",
]
