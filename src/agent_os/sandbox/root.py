"""The view of files: a template made once by the launcher, and one root per agent assembled from it.

What is not mounted here does not exist for an agent. Sources are pinned as unattached mount trees before anything is
mounted, and every mount point is reached by descriptors without following a link, so a path that changes under our
hands can make a spawn fail but never point it elsewhere.
"""

import errno
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent_os.sandbox import syscalls
from agent_os.sandbox.spec import Cover, SpawnSpec

# A directory that every Linux has and nobody works in; covered in the launcher's own mount namespace only.
TEMPLATE = "/sys"
_SYSTEM, _PREFIXES, _ROOT = f"{TEMPLATE}/system", f"{TEMPLATE}/prefix", f"{TEMPLATE}/root"
_LOWER, _UPPER = f"{TEMPLATE}/lower", f"{TEMPLATE}/upper"
_HELD = "/.held"  # in an agent's root, and covered there
_NO_DIR, _NO_FILE = f"{TEMPLATE}/masked-directory", f"{TEMPLATE}/masked-file"

_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")  # tty: whatever terminal the caller itself has, or none
_TOP_LEVEL = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_BOUND_ETC = ("alternatives", "ssl/certs")  # of /etc/ssl the certificates only: private keys may lie beside them
_COPIED_ETC = ("ld.so.cache", "localtime", "mime.types", "ssl/openssl.cnf")
_SHELL = "/bin/bash" if os.path.exists("/bin/bash") else "/bin/sh"
_WRITTEN_ETC = {
    "passwd": f"agent:x:1000:1000:agent:/home/agent:{_SHELL}\nnobody:x:65534:65534::/:/usr/sbin/nologin\n",
    "group": "agent:x:1000:\nnogroup:x:65534:\n",
    "hosts": "127.0.0.1 localhost agent\n::1 localhost\n",
    "resolv.conf": "",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
    "host.conf": "multi on\n",
}

# Of a guest's /proc, besides its processes. The first four are links into its own process.
_PROC_FACTS = set("self thread-self mounts net cpuinfo meminfo stat uptime loadavg version filesystems".split())

_MOST_TERMINALS = 64  # of one guest: all guests together share what the host has

_READ_ONLY = syscalls.ATTR_RDONLY | syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV
_QUIET = syscalls.MS_NOSUID | syscalls.MS_NODEV


def pin(prefixes: Iterable[str]) -> dict[str, int]:
    """Private copies of every tree the template shows, by host path. Root mode calls this before it gives up root."""
    wanted = ["/usr", *prefixes, *(f"/etc/{name}" for name in _BOUND_ETC), *(f"/dev/{name}" for name in _DEVICES)]
    wanted += [f"/{name}" for name in _TOP_LEVEL if os.path.isdir(f"/{name}") and not os.path.islink(f"/{name}")]
    return {path: syscalls.clone_tree(path) for path in wanted if os.path.exists(path)}


def build_template(trees: dict[str, int], prefixes: Iterable[str]) -> None:
    """Step L7: all that agents share, read-only, on a private tmpfs. The launcher itself keeps the host's view."""
    syscalls.mount("tmpfs", TEMPLATE, _QUIET, "size=4m,nr_inodes=8192,mode=755")
    for folder in (_SYSTEM, _PREFIXES, _ROOT, _LOWER, _UPPER, _NO_DIR, f"{_SYSTEM}/etc/ssl", f"{_SYSTEM}/dev"):
        os.makedirs(folder, 0o755)
    open(_NO_FILE, "x").close()
    _show(trees, "/usr", f"{_SYSTEM}/usr", _READ_ONLY)
    for name in _TOP_LEVEL:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), f"{_SYSTEM}/{name}")
        else:
            _show(trees, f"/{name}", f"{_SYSTEM}/{name}", _READ_ONLY)
    _fill_etc(trees)
    for name in _DEVICES:
        _show(trees, f"/dev/{name}", f"{_SYSTEM}/dev/{name}", syscalls.ATTR_NOSUID | syscalls.ATTR_NOEXEC)
    for name in ("shm", "pts"):
        os.mkdir(f"{_SYSTEM}/dev/{name}")
    for name, target in (
        ("ptmx", "pts/ptmx"),
        ("fd", "/proc/self/fd"),
        ("stdin", "fd/0"),
        ("stdout", "fd/1"),
        ("stderr", "fd/2"),
    ):
        os.symlink(target, f"{_SYSTEM}/dev/{name}")
    for index, path in enumerate(prefixes):
        _show(trees, path, f"{_PREFIXES}/{index}", _READ_ONLY)
    template = os.open(TEMPLATE, os.O_PATH)
    syscalls.set_tree(template, syscalls.ATTR_RDONLY, recursive=False)
    os.close(template)


def _fill_etc(trees: dict[str, int]) -> None:
    for name in _BOUND_ETC:
        _show(trees, f"/etc/{name}", f"{_SYSTEM}/etc/{name}", _READ_ONLY)
    for name in _COPIED_ETC:
        try:
            with open(f"/etc/{name}", "rb") as source, open(f"{_SYSTEM}/etc/{name}", "xb") as copy:
                copy.write(source.read(1 << 20))
        except (FileNotFoundError, PermissionError):
            continue  # a comfort; nothing depends on it
    for name, text in _WRITTEN_ETC.items():
        with open(f"{_SYSTEM}/etc/{name}", "x") as file:
            file.write(text)


def _show(trees: dict[str, int], source: str, target: str, attributes: int) -> None:
    tree = trees.pop(source, None)
    if tree is None:
        return
    if stat.S_ISDIR(os.fstat(tree).st_mode):
        os.makedirs(target, 0o755)
    else:
        open(target, "x").close()
    syscalls.set_tree(tree, attributes)
    place = os.open(target, os.O_PATH)
    syscalls.attach_tree(tree, place)
    os.close(tree)
    os.close(place)


@dataclass(frozen=True)
class Sources:
    """What a spawn brings along: the descriptors by name, and how they came (root mode: unattached trees)."""

    descriptors: dict[str, int]
    are_trees: bool
    prefixes: tuple[str, ...]  # of the interpreter, for native agents
    uid: int
    joined: frozenset[str] = frozenset()  # those that were taken from another agent's view, and are trees in any mode

    def tree(self, name: str) -> int:
        """An unattached tree for a descriptor. User mode sends a plain descriptor of a directory in the host's mount
        namespace, which cannot be bound from here: reopen its path and make sure it is still the same thing."""
        fd = self.descriptors[name]
        if self.are_trees or name in self.joined:
            return fd
        again = os.open(os.readlink(f"/proc/self/fd/{fd}"), os.O_PATH | os.O_NOFOLLOW)
        if not os.path.sameopenfile(fd, again):
            raise OSError(errno.ESTALE, f"{name}: the mount source was replaced during the spawn")
        tree = syscalls.clone_tree(at=again)
        os.close(again)
        return tree


def join(mounts: int, spec: SpawnSpec) -> dict[str, int]:
    """The workspace and the binds of another agent, as trees by the names of our own spec: what it sees there is what
    we see, also what is written from now on. `mounts` is its mount namespace, which belongs to the launcher."""
    own = os.open("/proc/self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
    syscalls.setns(mounts, syscalls.CLONE_NEWNS)
    try:
        trees = {bind.fd: syscalls.clone_tree(bind.dst) for bind in spec.binds}
        return {**trees, "lower": syscalls.clone_tree(spec.workspace.at)}
    finally:
        syscalls.setns(own, syscalls.CLONE_NEWNS)
        os.close(own)


def assemble(root: "Root", spec: SpawnSpec, sources: Sources) -> int:
    """Step C5: what is this agent's own. Returns an O_PATH descriptor of the workspace's root."""
    for path, make in sorted(_mounts(spec, sources, root), key=lambda entry: entry[0].count("/")):
        make(path)
    _cover(root, spec)
    workspace = root.place(spec.workspace.at)
    mounted = [*spec.mounted, *(sources.prefixes if spec.kind == "native" else ())]
    if not any(f"{path}/".startswith("/work/") for path in mounted):
        root.attach("/work", syscalls.clone_tree(at=workspace))  # an alias, masks included; it must hide no mount
    root.seal()
    return workspace


def _cover(root: "Root", spec: SpawnSpec) -> None:
    """What is held comes first, as it is reached through a view that nothing covers yet; what is hidden comes last."""
    writable = {spec.workspace.at, *(bind.dst for bind in spec.binds if bind.rw)}
    places = sorted({spec.workspace.at, *(bind.dst for bind in spec.binds)}, key=len, reverse=True)
    wanted = [*spec.covers, *map(Cover, spec.masks)]
    held: dict[str, set[str]] = {at: set() for at in writable}
    for cover in wanted:
        at = next((at for at in places if cover.path.startswith(f"{at}/")), "")
        if at in writable:
            held[at].update(_above(cover.path, at), [cover.path] if cover.how == "keep" else ())
    root.hold({at: paths for at, paths in held.items() if paths})
    for cover in wanted:
        if cover.how == "freeze":
            root.freeze(cover)
        elif cover.how == "keep":
            root.require(cover)
    for cover in wanted:
        if cover.how == "hide":
            root.mask(cover)


def _above(path: str, top: str) -> Iterator[str]:
    """The folders between a place and a path in it."""
    while len(path := path.rpartition("/")[0]) > len(top):
        yield path


def enter() -> None:
    """Step C6: the host's view is gone afterwards."""
    os.chdir(_ROOT)
    syscalls.pivot_root_here()


def _is_meant(found: os.stat_result, cover: Cover) -> bool:
    if cover.device:
        return (found.st_dev, found.st_ino) == (cover.device, cover.inode)
    # An overlay may number folders anew, and use the upper half of a file's number for itself.
    return stat.S_ISDIR(found.st_mode) or (found.st_ino ^ cover.inode) & 0xFFFF_FFFF == 0


def _put(tree: int, place: int) -> None:
    syscalls.attach_tree(tree, place)
    os.close(tree)
    os.close(place)


def _mounts(spec: SpawnSpec, sources: Sources, root: "Root") -> Iterable[tuple[str, Callable[[str], None]]]:
    """Every mount of this agent by place; outer places are mounted before inner ones."""
    owner = f"uid={sources.uid},gid={sources.uid},mode=700"

    def tmpfs(options: str) -> Callable[[str], None]:
        return lambda path: root.mount(path, "tmpfs", _QUIET, options)

    def tree(name: str, attributes: int) -> Callable[[str], None]:
        return lambda path: root.attach(path, sources.tree(name), attributes)

    if "tmp" in sources.descriptors:  # on disk, and bounded by the kernel's watcher
        yield "/tmp", tree("tmp", syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV)
    else:
        yield "/tmp", tmpfs(f"size={spec.limits.tmp_mb}m,nr_inodes=65536,mode=1777")
    yield "/proc", lambda path: root.mount_proc(path, pids_only=spec.kind != "guest")
    if spec.kind == "guest":  # with or without a terminal of its own: programs open further ones
        options = f"newinstance,ptmxmode=0666,mode=0600,max={_MOST_TERMINALS}"
        yield "/dev/pts", lambda path: root.mount(path, "devpts", syscalls.MS_NOSUID | syscalls.MS_NOEXEC, options)
    if spec.kind == "native":
        for index, prefix in enumerate(sources.prefixes):
            yield prefix, lambda path, index=index: root.attach(path, syscalls.clone_tree(f"{_PREFIXES}/{index}"))
    yield "/home/agent", tmpfs(f"size={spec.limits.tmp_mb}m,nr_inodes=65536,{owner}")
    for bind in spec.binds:
        writable = 0 if bind.rw else syscalls.ATTR_RDONLY
        noexec = 0 if bind.exec else syscalls.ATTR_NOEXEC
        yield bind.dst, tree(bind.fd, syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV | writable | noexec)
    match spec.workspace.mode:
        case "tmpfs":
            yield spec.workspace.at, tmpfs(f"size={spec.workspace.size_mb}m,nr_inodes={spec.workspace.inodes},{owner}")
        case "bind":
            yield spec.workspace.at, tree("lower", syscalls.ATTR_NOSUID | syscalls.ATTR_NODEV)
        case "overlay":
            yield spec.workspace.at, lambda path: _mount_overlay(root, path, sources)


def _mount_overlay(root: "Root", path: str, sources: Sources) -> None:
    """Writes go to the upper directory; the project below is never touched. The layers themselves stay out of view."""
    for name, scratch in (("lower", _LOWER), ("upper", _UPPER)):
        place = os.open(scratch, os.O_PATH)
        syscalls.attach_tree(sources.tree(name), place)
        os.close(place)
    # `userxattr` also switches redirect_dir and metacopy off
    options = f"lowerdir={_LOWER},upperdir={_UPPER}/upper,workdir={_UPPER}/work,userxattr"
    root.mount(path, "overlay", _QUIET, options)
    place = root.place(path)
    if os.statvfs(place).f_flag & os.ST_RDONLY:  # overlayfs answers an unusable upper so, instead of failing
        raise OSError(errno.EROFS, "the overlay came out read-only")
    os.close(place)
    syscalls.unmount(_LOWER)
    syscalls.unmount(_UPPER)


class Root:
    """An agent's root while it is being built, on a tmpfs of its own. It begins with what all agents share."""

    def __init__(self) -> None:
        syscalls.mount("tmpfs", _ROOT, _QUIET, "size=1m,nr_inodes=2048,mode=755")
        self._fd = os.open(_ROOT, os.O_PATH | os.O_DIRECTORY)
        self._ours = {os.fstat(self._fd).st_dev}  # file systems in which mount points may be made
        for name in os.listdir(_SYSTEM):
            if os.path.islink(f"{_SYSTEM}/{name}"):
                os.symlink(os.readlink(f"{_SYSTEM}/{name}"), f"{_ROOT}/{name}")
            else:
                self.attach(f"/{name}", syscalls.clone_tree(f"{_SYSTEM}/{name}"))
        self.mount("/dev/shm", "tmpfs", _QUIET | syscalls.MS_NOEXEC, "size=16m,nr_inodes=4096,mode=1777")

    def mount(self, path: str, kind: str, flags: int, options: str) -> None:
        place = self.place(path, create=True)
        syscalls.mount(kind, f"/proc/self/fd/{place}", flags, options)
        os.close(place)
        if kind == "tmpfs":
            place = self.place(path)
            self._ours.add(os.fstat(place).st_dev)
            os.close(place)

    def mount_proc(self, path: str, pids_only: bool) -> None:
        """Only what is about the agent's own processes. Real programs (node, psutil, htop) also ask for a few facts
        about the machine: guests see those, and everything else of the full proc is covered."""
        flags = _QUIET | syscalls.MS_NOEXEC
        self.mount(path, "proc", flags, "hidepid=invisible,subset=pid" if pids_only else "hidepid=invisible")
        if pids_only:
            return
        for name in os.listdir(f"{_ROOT}{path}"):
            if not name.isdigit() and name not in _PROC_FACTS:
                self.mask(Cover(f"{path}/{name}"))

    def attach(self, path: str, tree: int, attributes: int = 0) -> None:
        if attributes:
            syscalls.set_tree(tree, attributes)
        _put(tree, self.place(path, create=True, directory=stat.S_ISDIR(os.fstat(tree).st_mode)))

    def mask(self, cover: Cover) -> None:
        """Cover a path inside a mount by something empty."""
        if (place := self._found(cover)) is not None:
            _put(syscalls.clone_tree(_NO_DIR if stat.S_ISDIR(os.fstat(place).st_mode) else _NO_FILE), place)

    def require(self, cover: Cover) -> None:
        if (place := self._found(cover)) is not None:
            os.close(place)

    def _found(self, cover: Cover) -> int | None:
        """A descriptor of what is to be covered; None: it is not there, so there is nothing to hide. ESTALE: it must be
        there, and is not or has become another one since somebody looked."""
        try:
            place = self.place(cover.path)
        except OSError as problem:
            if cover.inode:
                raise OSError(errno.ESTALE, f"{cover.path} was moved during the spawn ({problem.strerror})") from None
            if isinstance(problem, FileNotFoundError):
                return None
            raise
        if cover.inode and not _is_meant(os.fstat(place), cover):
            raise OSError(errno.ESTALE, f"{cover.path} was replaced during the spawn")
        return place

    def freeze(self, cover: Cover) -> None:
        """Show a path read-only, with all below it."""
        if (place := self._found(cover)) is not None:
            tree = syscalls.clone_tree(at=place)
            syscalls.set_tree(tree, syscalls.ATTR_RDONLY)
            _put(tree, place)

    def hold(self, held: Mapping[str, Iterable[str]]) -> None:
        """Nobody inside can rename or remove these paths, by the place they lie in. Linux refuses that (EBUSY) for
        whatever something is mounted on, in any view of it. Mounted where the agent is, each would be an island: no
        file could be renamed across its shore. So it is done in a second view of the place, out of its reach."""
        for index, (at, paths) in enumerate(held.items()):
            place = self.place(at)
            self.attach(f"{_HELD}/{index}", syscalls.clone_tree(at=place))
            os.close(place)
            for path in sorted(paths, key=len, reverse=True):  # what is held hides what lies in it
                self.mask(Cover(f"{_HELD}/{index}{path[len(at) :]}"))
        if held:
            self.mask(Cover(_HELD))

    def seal(self) -> None:
        syscalls.set_tree(self._fd, _READ_ONLY, recursive=False)
        os.close(self._fd)

    def place(self, path: str, create: bool = False, directory: bool = True) -> int:
        """A descriptor of a path below the root. Never follows a link: one in the way raises ELOOP or ENOTDIR."""
        parts = [part for part in path.split("/") if part]
        here = os.dup(self._fd)
        for index, part in enumerate(parts):
            inner = index < len(parts) - 1
            flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC | (os.O_DIRECTORY if inner else 0)
            try:
                there = os.open(part, flags, dir_fd=here)
            except FileNotFoundError:
                if not create:
                    raise
                self._make(here, part, directory or inner, path)
                there = os.open(part, flags, dir_fd=here)
            os.close(here)
            here = there
            if stat.S_ISLNK(os.fstat(here).st_mode):
                raise OSError(errno.ELOOP, f"{path}: a symbolic link stands in the way")
        return here

    def _make(self, parent: int, name: str, directory: bool, path: str) -> None:
        """A mount point, but only in what is ours: in a project or another mount it would be a change of the host's."""
        if os.fstat(parent).st_dev not in self._ours:
            raise FileNotFoundError(errno.ENOENT, f"{path} must exist already: it lies inside another mount")
        if directory:
            os.mkdir(name, 0o755, dir_fd=parent)
        else:
            os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o644, dir_fd=parent))
