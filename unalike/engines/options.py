"""Options that several engines take, each described once."""

from typing import Annotated

from unalike.settings.knobs import Knob

WorkerCount = Annotated[int | None, Knob("threads of the workers engine; processes of the ray engine", least=1)]
ClientsAtOnce = Annotated[int | None, Knob("clients in a stack of the batched engine", least=1)]
Memory = Annotated[int | str | None, Knob("for a stack of the batched engine: bytes, or 8GB")]
Compile = Annotated[bool | None, Knob("whether the batched engine compiles its step")]
Fast = Annotated[bool | None, Knob("whether it uses layers with kernels of their own (on a GPU: yes)")]
