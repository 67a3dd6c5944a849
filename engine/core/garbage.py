"""How seldom this process looks for circular garbage.

What holds the process's memory (conversations, records, arrays) is in no circles: reference counts free it. Looking for
circles among it costs the proxy up to a seventh of its time while hundreds of requests are open, at Python's own
threshold of 700 new objects. Objects that exist when a job starts (modules, the configuration) are left out for good.
"""

import gc

NEW_OBJECTS = 20_000
"""Between two looks at the young ones; a large request makes about this many."""


def look_seldom() -> None:
    """Call once all is imported and built."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(NEW_OBJECTS)
