"""A tasks folder of a test's own: manifests written from Python, handlers from steps.lua or given as text."""
import os
from pathlib import Path

from . import procs

STEPS = (Path(__file__).resolve().parent / "tasks" / "steps.lua").read_text()
RETRY = {"base": "100ms", "cap": "1s"}


def lua(value):
    """A Lua literal."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, Raw):
        return str(value)
    if isinstance(value, (list, tuple)):
        return "{ " + ", ".join(map(lua, value)) + " }"
    if isinstance(value, dict):
        return "{ " + ", ".join(f'["{k}"] = {lua(v)}' for k, v in value.items()) + " }"
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'


class Raw(str):
    """Lua text that goes into a manifest as it is: a key function."""


class TaskSet:
    """Tasks that exist at once: t.effect and t.peffect (tenant, platform; key `key`), t.run and t.prun (key: the run_id)."""

    def __init__(self):
        self.dir = procs.private_dir("tk-")
        self.folders, self.queues = {}, {}
        for name, owner, key in (("t.effect", "tenant", ["key"]), ("t.peffect", "platform", ["key"]),
                                 ("t.run", "tenant", None), ("t.prun", "platform", None)):
            self.add(name, owner=owner, **({"key": key} if key else {}))

    def add(self, name, *, handler=STEPS, **fields):
        """Declares (or replaces) task `folder.task` with the manifest's fields; handler: Lua text, by default the step interpreter.

        owner defaults to tenant; retry to 100 ms, growing to 1 s. Returns the name.
        """
        folder, task = name.split(".")
        fields = {"owner": "tenant", "retry": RETRY, **fields}
        fields["retry"] = {**RETRY, **fields["retry"]}
        if "UMAVEZ_TEST_BATCH" in os.environ:
            fields.setdefault("batch", int(os.environ["UMAVEZ_TEST_BATCH"]))
        self.folders.setdefault(folder, {})[task] = fields
        (self.dir / folder).mkdir(exist_ok=True)
        (self.dir / folder / f"{task}.lua").write_text(handler)
        (self.dir / folder / "manifest.lua").write_text("return " + lua({"tasks": self.folders[folder]}) + "\n")
        return name

    def add_queue(self, name, **fields):
        """Declares (or replaces) a queue, in a manifest of its own."""
        self.queues[name] = fields
        (self.dir / "queues").mkdir(exist_ok=True)
        (self.dir / "queues" / "manifest.lua").write_text("return " + lua({"tasks": {}, "queues": self.queues}) + "\n")

    def destroy(self):
        procs.remove_dir(self.dir)
