from typing_extensions import disjoint_base

@disjoint_base
class UnackedRing:
    @property
    def next_tag(self) -> int: ...
    @property
    def memory(self) -> int: ...
