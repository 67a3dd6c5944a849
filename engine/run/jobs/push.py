"""`job=push`: puts the images and runtimes that the configured run needs into a registry.

They are those that `job=prepare` made, each as `NAME:DIGEST`, which is the name of its folder in the cache: there
`sandbox=kubernetes` and other machines' `job=prepare job.registry=…` look for them. Interrupted, the same command goes
on with the image that was not there yet. Refuses images that are not prepared, and formats whose program is missing.
"""

from engine.config.built import Built
from engine.core.errors import ConfigError, ConfigErrors
from engine.observe.progress import make_progress
from engine.run.workbench import images_needed
from engine.sandbox.image_tools import missing_tools
from engine.sandbox.images import DebianImageStore
from engine.sandbox.kubernetes.code import reference
from engine.sandbox.pushed import Format, missing_converter, push
from engine.sandbox.references import check_registry, parse_reference

_REGISTRY, _FORMAT = "job.registry", "job.format"


class PushJob:
    """Pushes.

    Args:
        registry: where to; None: the sandboxes' own (`sandbox.registry`).
        format: how layers are packed.
        plain_http: whether a registry beyond loopback is spoken to by HTTP.
    """

    def __init__(self, *, registry: str | None, format: Format, plain_http: bool) -> None:
        self.registry = registry
        self.format = format
        self.plain_http = plain_http

    async def run(self, built: Built) -> int:
        """Exit code 0 when the registry has all of them in this format."""
        registry, images = self._where(built), DebianImageStore(plain_http=self.plain_http)
        specs = {images.path(spec): (key, spec) for key, spec in images_needed(built).items()}
        way_out = "run the same command with job=prepare first"
        problems = [*missing_tools(_REGISTRY, registry), *missing_converter(_FORMAT, self.format)]
        problems += [
            ConfigError(key, spec.name, "is not built on this machine", way_out)
            for key, spec in specs.values()
            if not images.has(spec)
        ]
        if problems:
            raise ConfigErrors(problems)
        sent = 0
        with make_progress(built.observe.progress_interval_s) as progress:
            for number, folder in enumerate(specs):
                progress.phase("pushing images", number, len(specs), folder.name)
                target = parse_reference(_REGISTRY, reference(registry, folder))
                sent += await push(folder, target, self.format, images.tools(), progress.say)
            progress.phase("pushing images", len(specs), len(specs), "")
        print(f"{registry} has {len(specs)} images as {self.format}; {sent} were sent now")
        return 0

    def _where(self, built: Built) -> str:
        if self.registry is not None:
            return check_registry(_REGISTRY, self.registry)
        own = built.config["sandbox"].get("registry")
        if own is None:
            raise ConfigError(_REGISTRY, None, "no registry is named", "set it, for example registry.example/lego-rl")
        return check_registry("sandbox.registry", own)
