"""Tasks: named async functions with a typed input. A table knows them by name; modules and entry points bring them."""

import importlib
import inspect
import logging
import math
import typing
from collections.abc import Awaitable, Callable, Iterable, Mapping
from importlib import metadata
from types import ModuleType
from typing import Any, Final, Generic, TypeGuard, TypeVar

import msgspec

from headgate.core.call import check_text
from headgate.core.errors import InvalidRequest, SettingsError, UnknownTask
from headgate.core.retry import RetryPolicy
from headgate.core.spelling import did_you_mean
from headgate.runner.context import Context

logger = logging.getLogger("headgate")
ENTRY_POINTS: Final = "headgate.tasks"

I = TypeVar("I")  # noqa: E741 - the input
R = TypeVar("R")
Run = Callable[[Context, I], Awaitable[R]]


class Task(Generic[I, R]):
    """A named async function that jobs run: `(ctx, input) -> result`. Calling it calls the function."""

    def __init__(
        self,
        name: str,
        run: Run[I, R],
        *,
        model: str | msgspec.UnsetType | None = msgspec.UNSET,
        retry: RetryPolicy | None = None,
        timeout_s: float | None = None,
        due_on_start: bool = False,
        check: Callable[[I], None] | None = None,
        needs_model: bool = False,
        inside: bool = False,
    ) -> None:
        check_text("task", name)
        named = None if model is msgspec.UNSET else model
        _check_options(name, named, retry, timeout_s)
        self.name = name
        self.run = run
        self.model = named
        self.model_from_input = model is msgspec.UNSET
        """Nothing was said about its model, not even None: then a `model` in its input names it."""
        self.needs_model = needs_model
        self.inside = inside
        """Part of headgate itself: nobody submits it by name."""
        self.retry = retry
        self.timeout_s = timeout_s
        self.due_on_start = due_on_start
        self._check = check
        self.input_type = _input_type(name, run)
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(self.input_type)

    def __call__(self, ctx: Context, input: I) -> Awaitable[R]:  # noqa: A002 - its name everywhere
        return self.run(ctx, input)

    def __repr__(self) -> str:
        return f"Task({self.name!r})"

    def read(self, payload: bytes) -> Any:
        """The input as its type; `InvalidRequest` says where it does not fit."""
        try:
            value = self._decoder.decode(payload)
        except msgspec.ValidationError as error:
            raise InvalidRequest(
                f"the input does not fit task {self.name!r}: {error!s:.500}", param="input"
            ) from error
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InvalidRequest(f"the input is not JSON: {error}", param="input") from error
        if self._check is not None:
            self._check(value)
        return value


def task(
    name: str,
    *,
    model: str | msgspec.UnsetType | None = msgspec.UNSET,
    retry: RetryPolicy | None = None,
    timeout_s: float | None = None,
    due_on_start: bool = False,
) -> Callable[[Run[I, R]], Task[I, R]]:
    """Make an async function `(ctx, input)` a task: `@task("summarise", model="summary")`.

    The type of `input` is checked when a job is submitted and again before it runs: any type that msgspec
    knows (a Struct, a dataclass, a TypedDict, `dict[str, Any]`, …). `retry` and `timeout_s` replace the settings'.
    Without `model`, the `model` of the input is the job's; `model=None` says that it means something else there.
    With `due_on_start`, deferred jobs of this task are due whenever a worker starts: the settings may be others by then.
    """
    return lambda run: Task(
        name, run, model=model, retry=retry, timeout_s=timeout_s, due_on_start=due_on_start
    )


def _check_options(name: str, model: object, retry: object, timeout_s: object) -> None:
    if model is not None and not (isinstance(model, str) and model):
        raise SettingsError(f"task {name!r}: model must be a model's name, not {model!r:.60}")
    if retry is not None and not isinstance(retry, RetryPolicy):
        raise SettingsError(f"task {name!r}: retry must be a RetryPolicy, not {retry!r:.60}")
    if timeout_s is not None and not (_is_number(timeout_s) and 0 < timeout_s < math.inf):
        raise SettingsError(
            f"task {name!r}: timeout_s must be a number of seconds above 0, not {timeout_s!r:.60}"
        )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _input_type(name: str, run: Callable[..., Any]) -> Any:
    if not inspect.iscoroutinefunction(run):
        raise SettingsError(f"task {name!r} must be an async function: async def {name}(ctx, input): …")
    parameters = list(inspect.signature(run).parameters.values())
    if len(parameters) != 2 or any(one.kind is one.KEYWORD_ONLY for one in parameters):
        raise SettingsError(f"task {name!r} must take two arguments: (ctx, input)")
    try:
        hints = typing.get_type_hints(run)
    except NameError as error:
        raise SettingsError(
            f"task {name!r}: its input's type is not known where it is defined: {error}"
        ) from error
    return hints.get(parameters[1].name, Any)


class TaskTable:
    """Tasks by name."""

    def __init__(self, tasks: Iterable[Task[Any, Any]] = ()) -> None:
        self._tasks: dict[str, Task[Any, Any]] = {}
        self._entry_points_loaded = False
        for each in tasks:
            self.add(each)

    def add(self, new: Task[Any, Any]) -> None:
        if not isinstance(new, Task):
            raise SettingsError(f"{new!r} is no task; decorate the function with @headgate.task(…)")
        if self._tasks.get(new.name, new) is not new:
            raise SettingsError(f"two tasks are called {new.name!r}")
        self._tasks[new.name] = new

    def get(self, name: str) -> Task[Any, Any] | None:
        return self._tasks.get(name)

    def find(self, name: str, *, inside: bool = False) -> Task[Any, Any]:
        if name not in self._tasks:
            self.load_entry_points()
        found = self._tasks.get(name)
        if found is None or (found.inside and not inside):
            hint = did_you_mean(name, self.names()) or ";"
            raise UnknownTask(
                f"no task is called {name[:100]!r}{hint} known: {', '.join(self.names())}. Name its module"
                " with --tasks or under jobs.tasks in the settings, or pass it to headgate.open(tasks=[…])"
            )
        return found

    def names(self) -> list[str]:
        """Those that may be submitted."""
        return sorted(name for name, task in self._tasks.items() if not task.inside)

    def due_on_start(self) -> list[str]:
        """Those whose deferred jobs a starting worker looks at again."""
        return sorted(name for name, task in self._tasks.items() if task.due_on_start)

    def load(self, path: str) -> None:
        """`package.module` for all its tasks, `package.module:name` for one."""
        module_name, _, attribute = path.partition(":")
        try:
            module = importlib.import_module(module_name)
        except ImportError as error:
            raise SettingsError(f"jobs.tasks: {path!r} cannot be imported: {error}") from error
        found = [getattr(module, attribute)] if hasattr(module, attribute) else _tasks_in(module)
        if not found or (attribute and not hasattr(module, attribute)):
            raise SettingsError(
                f"jobs.tasks: {path!r} has no task; decorate a function with @headgate.task(…)"
            )
        for each in found:
            self.add(typing.cast("Task[Any, Any]", each))

    def load_entry_points(self) -> None:
        """Installed packages bring tasks under the entry point group `headgate.tasks`; once, when first needed."""
        if self._entry_points_loaded:
            return
        self._entry_points_loaded = True
        for entry_point in metadata.entry_points(group=ENTRY_POINTS):
            try:
                self.load(entry_point.value)
            except Exception:
                # Somebody else's package: it must not take everybody down with it.
                logger.exception("the tasks of entry point %s cannot be loaded", entry_point)


def _tasks_in(module: ModuleType) -> list[Task[Any, Any]]:
    members: Mapping[str, object] = vars(module)
    return [member for member in members.values() if isinstance(member, Task)]
