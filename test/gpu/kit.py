"""The machinery of the kit: results, child programs, control groups, and the parts of gpumem. steps.py has the steps."""
import ctypes
import http.client
import json
import os
import queue
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import uuid

HERE = os.path.dirname(os.path.abspath(__file__))
BEGAN = time.monotonic()

class Over(Exception):
    """The step has used up its box of time."""

class NotTried(Exception):
    """The machine lacks something that the step needs."""

def prepare_child(group):
    """Returns the function that a child runs before exec: it gets a process group, and the kernel kills it with its parent."""
    def prepare():
        os.setpgid(0, 0)
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
        if group:
            with open(os.path.join(group, "cgroup.procs"), "w") as procs:
                procs.write("0")
    return prepare

class Program:
    """A child that prints one JSON object a line."""
    gentle = False  # SIGTERM comes before SIGKILL: the program has something to clean up

    def __init__(self, kit, command, env=None, group=None, log="programs.log"):
        self.kit, self.command = kit, command
        self.lines = queue.Queue()
        self.log = open(os.path.join(kit.out, log), "ab")
        full = kit.environment(env or {})
        if group and kit.o.dry and group.startswith(kit.cgroups):  # the simulated driver reads its control group here
            full["FAKENVML_CGROUP"], group = "/" + os.path.relpath(group, kit.cgroups), None
        self.p = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, env=full, text=True, bufsize=1, preexec_fn=prepare_child(group))
        kit.programs.append(self)
        threading.Thread(target=self.copy, daemon=True).start()

    def copy(self):
        for line in self.p.stdout:
            try:
                self.lines.put(json.loads(line))
            except ValueError:
                self.log.write(line.encode())
        self.lines.put(None)

    def read(self, seconds):
        """Returns the next object, or an object with the reason why there is none."""
        seconds = min(seconds, max(0.1, self.kit.remaining()))
        try:
            reply = self.lines.get(timeout=seconds)
        except queue.Empty:
            return {"ok": False, "error": "no output for %.0f s" % seconds}
        if reply is None:
            return {"ok": False, "error": "the program ended with %s" % self.p.wait()}
        return reply

    def send(self, line):
        try:
            self.p.stdin.write(line + "\n")
            self.p.stdin.flush()
        except OSError:
            pass  # the program has ended: read returns how

    def request(self, line, seconds=15):
        self.send(line)
        return self.read(seconds)

    def close(self, seconds=5):
        try:
            self.p.stdin.close()
        except OSError:
            pass
        try:
            self.p.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self):
        try:
            os.killpg(self.p.pid, signal.SIGTERM if self.gentle else signal.SIGKILL)
            self.p.wait(8)
        except (ProcessLookupError, PermissionError):
            pass
        except subprocess.TimeoutExpired:
            os.killpg(self.p.pid, signal.SIGKILL)

class Kit:
    def __init__(self, options):
        self.o = options
        self.out = options.out
        os.makedirs(self.out, exist_ok=True)
        self.results = open(os.path.join(self.out, "results.jsonl"), "a")
        self.dir = tempfile.mkdtemp(prefix="kit", dir="/tmp")  # short: sockets are below it
        self.programs, self.step, self.box_end = [], "", BEGAN + options.budget
        self.lock = threading.Lock()
        self.count = 0
        self.uuids, self.driver = [], ""
        self.groups = []
        self.cgroups = "/sys/fs/cgroup"
        if options.dry:  # the simulated kernel's control groups (test/fakenvml/README.md)
            self.cgroups = os.environ["FAKENVML_CONFIG"] + ".d/cgroup"
            os.makedirs(self.cgroups)
            for name, text in (("cgroup.controllers", "memory dmem\n"), ("dmem.capacity", "nvidia/0000:05:00.0/vidmem 85520809984\n")):
                with open(os.path.join(self.cgroups, name), "w") as f:
                    f.write(text)
        self.control = ""  # path of nvidia-cuda-mps-control
        self.exclusive = {}  # requests a second of one program alone, by kind of request
        self.pipes = []  # pipe directories of running daemons
        self.unhealthy = False  # gpumem's supervisor failed before: later waits for it are short

    def remaining(self):
        return min(self.box_end, BEGAN + self.o.budget) - time.monotonic()

    def record(self, what, **fields):
        """Writes one result to the disk, and prints its beginning."""
        line = {"t": round(time.monotonic() - BEGAN, 1), "step": self.step, "what": what}
        line.update(fields)
        with self.lock:
            self.results.write(json.dumps(line, default=str) + "\n")
            self.results.flush()
            os.fsync(self.results.fileno())
        print("%6.1f %-10s %s: %s" % (line["t"], self.step, what, json.dumps(fields, default=str)[:260]), flush=True)
        return fields

    def claim(self, text, holds, kernel=False, **seen):
        """Records whether a statement of the docs holds. None means not tried; kernel: it needs a GPU that runs kernels."""
        if kernel and self.o.dry:
            holds, seen = None, {"not_tried": "the simulated driver runs no kernel"}
        self.record("claim", claim=text, holds=None if holds is None else bool(holds), **seen)

    def is_615(self):
        """Reports whether the driver limits control groups, and takes limits of MPS by UUID."""
        major = self.driver.split(".")[0]
        return major.isdigit() and int(major) >= 615

    def environment(self, more):
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CUDA_MPS", "XLA_PYTHON", "PYTORCH_", "GPUMEM_"))}
        env.update(more)
        if "NVIDIA_VISIBLE_DEVICES" in more and "CUDA_VISIBLE_DEVICES" not in more:
            env["CUDA_VISIBLE_DEVICES"] = more["NVIDIA_VISIBLE_DEVICES"]  # NVIDIA's runtime would show these alone
        return env

    def cu(self, *args, env=None, group=None):
        return Program(self, [sys.executable, os.path.join(HERE, "cu.py")] + [str(a) for a in args], env, group)

    def run_cu(self, *args, env=None, group=None, seconds=20):
        """Runs one CUDA program to its end, and returns its first object."""
        p = self.cu(*args, env=env, group=group)
        reply = p.read(seconds)
        p.close()
        return reply

    def folder(self, name):
        self.count += 1
        path = os.path.join(self.dir, "%s%d" % (name, self.count))
        os.makedirs(path)
        return path

    def group(self, name):
        """Makes a control group named as the kubelet and containerd name a container's; its path is None where that fails."""
        uid, container = str(uuid.uuid4()), uuid.uuid4().hex + uuid.uuid4().hex
        for root in ("/sys/fs/cgroup", "/sys/fs/cgroup/unified", "/sys/fs/cgroup/systemd"):
            if not os.path.exists(os.path.join(root, "cgroup.procs")):
                continue
            path = os.path.join(root, "gpumem-kit", "pod" + uid, container)
            try:
                os.makedirs(path)
                self.groups.append(path)
                return path, uid, container
            except OSError as e:
                self.record("control group", name=name, error=str(e))
        return None, uid, container

    def end_step(self):
        for pipe in self.pipes:
            if os.path.exists(os.path.join(pipe, "control")):
                try:
                    subprocess.run([self.control], input="quit\n", env=self.environment({"CUDA_MPS_PIPE_DIRECTORY": pipe}), capture_output=True, text=True, timeout=2)
                except subprocess.TimeoutExpired:
                    pass  # the daemon waits for its clients, which end below
        self.pipes = []
        for p in reversed(self.programs):
            if p.p.poll() is None:
                p.kill()
        self.programs = []

    def run(self, name, box, f):
        """Runs one step within its box of seconds. A failure ends the step alone."""
        self.step = name
        now = time.monotonic()
        self.box_end = min(now + box, BEGAN + self.o.budget - 6)
        if self.box_end - now < min(5, box):
            self.record("step", not_tried="no time is left")
            return
        signal.setitimer(signal.ITIMER_REAL, self.box_end - now)
        try:
            f(self)
            self.record("step", took_s=round(time.monotonic() - now, 1))
        except Over:
            self.record("step", cut_off="the box of %d s or the budget is used up" % box, took_s=round(time.monotonic() - now, 1))
        except NotTried as e:
            self.record("step", not_tried=str(e))
        except Exception as e:  # the other steps still run
            self.record("step", error="%s: %s" % (type(e).__name__, e), where=traceback.format_exc().splitlines()[-3:])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            self.box_end = BEGAN + self.o.budget
            try:
                self.end_step()
            except Exception as e:
                self.record("step", error="end: %s" % e)

    def clean_up(self):
        """Removes the control groups, mounts and files of this run."""
        deadline = time.monotonic() + 2  # for programs that are about to end
        pods = sorted({os.path.dirname(path) for path in self.groups})
        for path in self.groups + pods + sorted({os.path.dirname(path) for path in pods}):
            while True:
                try:
                    os.rmdir(path)
                except FileNotFoundError:
                    pass
                except OSError:  # busy
                    if time.monotonic() < deadline:
                        time.sleep(0.1)
                        continue
                break
        with open("/proc/self/mounts") as mounts:
            below = [line.split()[1] for line in mounts if line.split()[1].startswith(self.dir + "/")]
        for path in reversed(below):
            sh("umount -l " + path)
        shutil.rmtree(self.dir, ignore_errors=True)

    # The parts of gpumem.

    def start_node(self, level, mps_dir=None, nri=False):
        """Starts the device plugin before the stand-in for the kubelet. Returns the stand-in and the plugin's offer."""
        patience = 4 if level == "mps" and self.unhealthy else 25  # without a healthy supervisor no unit comes
        args = [self.o.node, "-plugin", self.o.plugin, "-dir", self.folder("n"), "-patience", "%ds" % patience]
        args += ["-nri", "-cgroup-root", self.cgroups] if nri else []
        args += ["--", "--enforcement=" + level, "--nvml-library=" + self.o.nvml, "--mps-dir=" + (mps_dir or os.path.join(self.dir, "no-mps"))]
        n = Program(self, args, log="node.log")
        n.gentle = True
        return n, n.read(patience + 10)

    def allocate(self, n, name, units, *gpus):
        """Allocates units of each GPU (of any without a UUID) for a container. Returns reply, environment and control group."""
        group, uid, container = self.group(name)
        reply = n.request(" ".join(["allocate", name, str(units), uid, container] + list(gpus)))
        if "envs" in reply:
            reply["prestart"] = n.request("prestart " + name)
        return reply, reply.get("envs", {}), group

    def supervisor(self):
        """Starts gpumem's supervisor of the MPS daemon. Returns it, its folder and its status."""
        self.require_mps()
        d = self.folder("m")
        began = time.monotonic()
        p = Program(self, [self.o.plugin, "mps", "--mps-dir=" + d, "--mps-control=" + self.control, "--drain=1s", "--log-format=console"] + (["--nvml-library=" + self.o.nvml] if self.o.nvml else []), log="supervisor.log")
        p.gentle = True
        status = {}
        while time.monotonic() < began + (6 if self.unhealthy else 40) and self.remaining() > 1:
            status = self.status(d)
            if status.get("healthy"):
                break
            if p.p.poll() is not None:
                status["ended"] = p.p.returncode
                break
            time.sleep(0.3)
        status["took_s"] = round(time.monotonic() - began, 1)
        self.unhealthy = not status.get("healthy")
        return p, d, status

    def require_supervisor(self):
        """Returns the folder of a healthy supervisor. Results without one are never recorded as level mps."""
        _, d, status = self.supervisor()
        self.record("supervisor", **status)
        if not status.get("healthy"):
            raise NotTried("gpumem's supervisor: %s" % (status.get("reason") or status))
        return d

    def level(self, level):
        """Returns a node at a level with its offer and the supervisor's folder. Raises NotTried where there is none."""
        d = self.require_supervisor() if level == "mps" else None
        n, offer = self.start_node(level, d)
        if not offer.get("healthy"):
            raise NotTried("the device plugin offers no unit at %s: %s" % (level, offer))
        return n, offer, d

    def status(self, d):
        class Unix(http.client.HTTPConnection):
            def connect(self):
                self.sock = socket.socket(socket.AF_UNIX)
                self.sock.settimeout(2)
                self.sock.connect(os.path.join(d, "status.sock"))
        try:
            c = Unix("mps")
            c.request("GET", "/status")
            return json.loads(c.getresponse().read())
        except (OSError, ValueError) as e:
            return {"error": str(e)}

    def require_mps(self):
        if not self.control:
            raise NotTried("nvidia-cuda-mps-control is not on this machine")

    def daemon(self, *options):
        """Starts NVIDIA's daemon. Returns it, its pipe and log directories, and how the start went."""
        self.require_mps()
        pipe, logs = self.folder("p"), self.folder("l")
        began = time.monotonic()
        p = Program(self, [self.control] + list(options), {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": logs, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, log="mps-daemon.log")
        self.pipes.append(pipe)
        while not os.path.exists(os.path.join(pipe, "control")) and time.monotonic() < began + 8 and p.p.poll() is None:
            time.sleep(0.05)
        return p, pipe, logs, {"options": options, "there": os.path.exists(os.path.join(pipe, "control")), "code": p.p.poll(), "took_s": round(time.monotonic() - began, 2), "pipe": sorted(os.listdir(pipe))}

    def any_daemon(self):
        """Starts the daemon with the first options that it accepts."""
        for options in (("-f", "-multiuser-server"), ("-f",)):
            p, pipe, logs, state = self.daemon(*options)
            self.claim("NVIDIA's daemon starts with %s" % " ".join(options), state["there"], output=sh("tail -c 300 %s; tail -c 300 %s/*" % (os.path.join(self.out, "mps-daemon.log"), logs), 3, 600), **state)
            if state["there"]:
                return p, pipe, logs, state
            p.kill()
        raise NotTried("the MPS daemon does not start")

    def command(self, pipe, words, seconds=10):
        """Returns the daemon's reply to a command, word for word."""
        env = self.environment({"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_LOG_DIRECTORY": pipe})
        try:
            done = subprocess.run([self.control], input=words + "\n", env=env, capture_output=True, text=True, timeout=min(seconds, max(1, self.remaining())))
            return {"code": done.returncode, "out": done.stdout[:400], "err": done.stderr[:300]}
        except subprocess.TimeoutExpired:
            return {"error": "no reply in %d s" % seconds}

def sh(command, seconds=10, most=600):
    """Returns the first characters of a shell command's output."""
    try:
        done = subprocess.run(["/bin/sh", "-c", command], capture_output=True, text=True, timeout=seconds)
        return (done.stdout + done.stderr).strip()[:most]
    except subprocess.TimeoutExpired:
        return "no output in %d s" % seconds
