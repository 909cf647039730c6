"""Collections of what is new are small and not too frequent."""

from mirrormq.runtime import hygiene


def test_what_is_new_is_collected_again_only_after_a_while(monkeypatch):
    asked = []
    monkeypatch.setattr(hygiene.gc, "collect", asked.append)
    young = hygiene.Young()
    for mono in (1_000_000, 1_000_001, 1_000_000 + hygiene.YOUNG_US, 1_000_001 + hygiene.YOUNG_US):
        young.look(mono)
    assert asked == [1, 1]
