from typing import final

@final
class Graveyard:
    def free(self, most: int) -> int: ...
