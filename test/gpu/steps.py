"""Measures gpumem on a machine with NVIDIA GPUs within minutes. README.md describes the steps.

The most valuable results come first, each is on the disk at once, and no step exceeds its box of time. Nothing here sets a
compute mode, clocks, MIG mode or persistence mode, resets a GPU, or allocates managed memory.
"""
import argparse
import glob
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid

import nvml
from kit import BEGAN, HERE, Kit, NotTried, Over, Program, prepare_child, sh

LIMIT = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
SHARERS = (1, 2, 4, 8)

def refused(reply):
    return not reply.get("ok") and "OUT_OF_MEMORY" in str(reply.get("error"))

def holds_within(kit, level, mib, env, group, limited):
    """Allocates less and more than a grant in a container with this environment. limited: the level enforces the grant."""
    half, twice = (kit.run_cu("hold", size, env=env, group=group) for size in (mib // 2, mib * 2))
    kit.claim("%s: half of the grant can be allocated" % level, half.get("ok"), result=half)
    child = kit.run_cu("fork", mib * 2, env=env, group=group)
    for who, reply in (("a program", twice), ("a forked child", child)):
        kit.claim("%s: %s %s twice the grant" % (level, who, "is refused" if limited else "gets"), refused(reply) if limited else reply.get("ok"), result=reply)
    first, second = (kit.cu("hold", mib * 3 // 4, env=env, group=group) for _ in range(2))
    both = [first.read(20), second.read(20)]
    first.close(), second.close()
    if level == "kernel":
        kit.claim("kernel: two processes share the container's limit", any(refused(r) for r in both), results=both)
    else:
        kit.claim("%s: two processes get three quarters of the grant each" % level, all(r.get("ok") for r in both), results=both)
    neighbour = kit.cu("spin", 2, env=env, group=group)
    neighbour.read(20)
    kit.run_cu("hold", mib * 2, env=env, group=group)
    reply = neighbour.read(10)
    kit.claim("%s: a program computes while another is over its grant" % level, reply.get("ok"), result=reply)

def facts(kit):
    if shutil.which("nvidia-smi"):
        with open(os.path.join(kit.out, "smi.txt"), "w") as f:
            subprocess.run(["nvidia-smi", "-q"], stdout=f, stderr=f, timeout=15)
        kit.record("nvidia-smi", path=shutil.which("nvidia-smi"), output=sh("nvidia-smi --query-gpu=name,driver_version,memory.total,memory.reserved,compute_mode,persistence_mode,mig.mode.current --format=csv,noheader"))
    found = sh("ldconfig -p | grep -oE '/[^ ]*(libcuda|libnvidia-ml|libnvidia-ptxjitcompiler)\\.so[^ ]*$'; ls -d /usr/bin/nvidia-* /usr/local/nvidia/bin/* /usr/local/nvidia/lib64/libcuda* /run/nvidia/driver 2>/dev/null", 5, 2500).split("\n")
    # Without -xdev: the driver may be a mount of its own.
    found += sh("timeout 8 find /usr/local /opt /usr/lib /usr/sbin -maxdepth 5 -name 'nvidia-cuda-mps*' 2>/dev/null", 9, 600).split("\n")
    kit.record("driver files", files=found)
    kit.control = kit.control or next((f for f in found if f.endswith("/nvidia-cuda-mps-control") and os.access(f, os.X_OK)), "")
    kit.record("MPS", control=kit.control, server=sh("command -v nvidia-cuda-mps-server"))
    kit.record("kernel", uname=sh("uname -a"), os=sh(". /etc/os-release; echo $PRETTY_NAME"), glibc=sh("ldd --version | head -1"), cpus=os.cpu_count(), memory=sh("grep -E 'MemTotal|MemFree' /proc/meminfo | tr -s ' '"), disk=sh("df -h / /tmp | tail -2"))
    kit.record("user", id=sh("id"), init=sh("cat /proc/1/comm; grep -E 'NSpid|CapEff|Seccomp:' /proc/self/status | tr -s '\\t' ' '"), own_cgroup=sh("cat /proc/self/cgroup"))
    kit.record("control groups", mounts=sh("grep cgroup /proc/mounts"), controllers=sh("cat /sys/fs/cgroup/cgroup.controllers /sys/fs/cgroup/cgroup.subtree_control 2>&1"), dmem=sh("cat /sys/fs/cgroup/dmem.capacity 2>&1"),
               can_make=sh("mkdir -p /sys/fs/cgroup/gpumem-try/a && echo yes; rmdir /sys/fs/cgroup/gpumem-try/a /sys/fs/cgroup/gpumem-try 2>&1"))
    kit.record("devices", dev=sh("ls -l /dev/nvidia* 2>&1"), proc=sh("cat /proc/driver/nvidia/version; ls /proc/driver/nvidia/gpus 2>&1"), shm=sh("df -h /dev/shm | tail -1"))
    kit.record("programs", paths={p: shutil.which(p) or "" for p in "containerd runc ctr crictl docker podman nvidia-ctk nvidia-container-runtime kubelet nft iptables ip unshare setpriv mount xz zstd gcc nvcc go".split()})
    kit.record("kernel for Kubernetes", filesystems=sh("grep -E 'overlay|tmpfs|proc' /proc/filesystems | tr -s '\\n\\t' ' '"), config=sh("zcat /proc/config.gz 2>&1 | grep -E 'CGROUP_DMEM|CGROUP_DEVICE|CGROUP_BPF|OVERLAY_FS|VETH|BRIDGE=|NF_TABLES=|NET_NS|PID_NS|USER_NS|IKCONFIG|MEMCG=' ", 5, 900),
               namespaces=sh("unshare -m true && echo mount; unshare -n true && echo net; unshare -p -f true && echo pid; unshare -n sh -c 'ip link add v0 type veth peer name v1 && echo veth; ip link add b0 type bridge && echo bridge'; d=$(mktemp -d); mkdir $d/l $d/u $d/w $d/m; unshare -m mount -t overlay overlay -o lowerdir=$d/l,upperdir=$d/u,workdir=$d/w $d/m && echo overlay; rm -rf $d", 10))
    versions = {name: d.version for name in ("torch", "jax", "transformers", "cupy-cuda13x", "grpcio") for d in importlib.metadata.distributions(name=name)}
    kit.record("python", version=sys.version.split()[0], packages=versions)

def calls(kit):
    failed = {}
    for name, rc, result in nvml.table(kit.o.nvml):
        kit.record("NVML", call=name, rc=nvml.code(rc), result=result)
        if rc not in (0, 3, 6, 10) and "(615" not in name and "(not called)" not in name:  # NOT_SUPPORTED, NOT_FOUND and TIMEOUT are regular replies
            failed[name] = nvml.code(rc)
    kit.claim("NVML answers every call that gpumem makes", not failed, failed=failed)
    idle = kit.cu("hold", 64)
    idle.read(20)
    p = kit.cu("spin", 5)
    ready = p.read(20)
    kit.claim("a kernel of the kit runs", ready.get("ready"), kernel=True, result=ready)
    time.sleep(3)
    n = nvml.NVML(kit.o.nvml)
    _, h = n.gpu()
    samples = n.samples(h)
    kit.record("NVML while one program computes", its_pid=p.p.pid, idle_pid=idle.p.pid, compute=n.processes(h, "Compute")[1:], rates=n.rates(h), samples=samples)
    sampled(kit, "time-slicing", samples, p, idle)
    kit.record("CUDA alone", spin=p.read(15))
    p.close(), idle.close()
    info = kit.run_cu("info")
    kit.record("CUDA alone", info=info)
    context = info.get("nvmlMineMiB")
    first = kit.run_cu("hold", 1024)
    kit.claim("NVML lists a process by its own process ID", context is not None, contextMiB=context, with1024MiB=first.get("nvmlMineMiB"))

def sampled(kit, how, samples, busy, idle):
    """Records whether NVML attributes the GPU's time to the program that computes."""
    by_pid = {s["pid"]: s["sm"] for s in samples[2]}
    kit.claim("%s: a program that computes has a sample" % how, by_pid.get(busy.p.pid, 0) > 0, kernel=True, samples=by_pid)
    kit.claim("%s: a program that computes nothing has none, or one of 0" % how, not by_pid.get(idle.p.pid), kernel=True, samples=by_pid)

def plugin(kit):
    n, offer = kit.start_node("advisory")
    total = kit.gpus[0][2]
    kit.claim("the device plugin offers all memory that the driver does not reserve", offer.get("healthy") == sum((g[2]["total"] - g[2]["reserved"]) // 1024 for g in kit.gpus), first_gpu=total, offer=offer)
    reply, env, group = kit.allocate(n, "one", 3)
    kit.record("allocate 3", **reply)
    kit.claim("a container gets its GPU, and no other", env.get("NVIDIA_VISIBLE_DEVICES") in kit.uuids, environment=env)
    other, _, _ = kit.allocate(n, "two", 10)
    kit.record("allocate 10", **other)
    if not env:
        return
    holds_within(kit, "advisory", 3072, env, group, limited=False)
    holder = kit.cu("hold", 1500, env=env, group=group)
    kit.record("a program in the container's control group", **holder.read(20))
    busy = kit.cu("spin", 9, 64, env=env, group=group)
    foreign = kit.cu("hold", 700)
    kit.record("a foreign program", **foreign.read(20))
    busy.read(20)
    used, deadline = None, time.monotonic() + 8
    while time.monotonic() < deadline and kit.remaining() > 3:
        metrics = n.request("metrics")
        used = next((v for name, v in metrics.get("metrics", {}).items() if "container_memory_used_bytes" in name and 'pod="one"' in name), None)
        if used and used > 1500 << 20:
            break
        time.sleep(0.5)
    kit.record("metrics", **metrics)
    kit.claim("the plugin measures a container's memory", used and used > 1500 << 20 if group else None, used=used, not_tried=None if group else "no control group can be made")
    kit.record("health", **n.request("health"))
    kit.record("log", **n.request("log"))

def mps(kit):
    p, pipe, logs, _ = kit.any_daemon()
    replies = {}
    for words in ("get_default_active_thread_percentage", "get_server_list", "set_default_active_thread_percentage 100", "set_default_device_pinned_mem_limit 0 8192M", "get_default_device_pinned_mem_limit 0", "nonsense"):
        replies[words] = kit.command(pipe, words)
    kit.claim("the daemon accepts gpumem's settings", all(replies[w].get("code") == 0 and not replies[w]["err"] for w in replies if w.startswith("set")), replies=replies)
    folder = kit.folder("c")
    mount = sh("mount --bind %s %s && mount -o remount,bind,ro %s && echo done" % (pipe, folder, folder))
    read_only = mount == "done"
    if not read_only:
        folder = pipe
    asked = kit.command(folder, "get_default_active_thread_percentage")
    kit.claim("the daemon replies through a read-only folder", asked.get("code") == 0 if read_only else None, mount=mount, reply=asked)
    client = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_VISIBLE_DEVICES": kit.uuids[0]}

    def most(claim, more, low, high, mib=4096):
        """A client gets between low and high MiB."""
        reply = kit.run_cu("most", 128, mib, env=dict(client, **more))
        got = reply.get("hasMiB", -1)
        kit.claim(claim, low <= got <= high, variables=more, result=reply)
    most("a client through that folder meets its limit of 2 GiB by index", {LIMIT: "0=2048M"}, 1024, 2048)
    most("a client without a variable meets the daemon's default of 8 GiB", {}, 7168, 8192, 12288)
    most("a limit for a GPU that the client does not see drops every limit", {LIMIT: "0=2048M,1=4096M"}, 9000, 12288, 12288)
    by_uuid = {LIMIT: "%s=2048M" % kit.uuids[0]}
    if kit.is_615():
        most("a client meets a limit by UUID", by_uuid, 1024, 2048)
    else:
        most("a driver before 615 ignores a limit by UUID", by_uuid, 4096, 4096)
    most("a variable cannot raise the daemon's default", {LIMIT: "0=10240M"}, 7168, 8192, 12288)
    most("a program without the pipe directory runs without MPS and without a limit", {"CUDA_MPS_PIPE_DIRECTORY": "/nonexistent", LIMIT: "0=2048M"}, 4096, 4096)
    quarter = kit.run_cu("most", 128, 512, env=dict(client, CUDA_MPS_ACTIVE_THREAD_PERCENTAGE="25"))
    whole = kit.run_cu("info", env=client)
    kit.claim("a client with 25 % sees a quarter of the multiprocessors", abs(quarter.get("sms", 0) - whole.get("sms", 0) / 4) <= 4, quarter=quarter, whole=whole)
    env = dict(client, **{LIMIT: "0=2048M"})
    one, two = kit.cu("hold", 1200, env=env), kit.cu("hold", 1200, env=env)
    both = [one.read(20), two.read(20)]
    kit.claim("the limit counts each process by itself", all(r.get("ok") for r in both), results=both)
    child = kit.run_cu("fork", 4096, env=env)
    kit.claim("a forked child meets the limit", refused(child), result=child)
    server = kit.command(pipe, "get_server_list").get("out", "").split("\n")[0]
    listed = {words: kit.command(pipe, words) for words in ("get_server_list", "get_client_list " + server, "ps", "get_device_client_list")}
    kit.claim("the daemon lists its server and its clients", server.isdigit() and str(one.p.pid) in listed["get_client_list " + server].get("out", ""), replies=listed)
    n = nvml.NVML(kit.o.nvml)
    _, h = n.gpu()
    spin = kit.cu("spin", 4, 64, env=env)
    spin.read(20)
    time.sleep(2.5)
    samples = n.samples(h)
    kit.record("NVML of clients", pids=[one.p.pid, two.p.pid, spin.p.pid], compute=n.processes(h, "Compute")[1:], mps=n.processes(h, "MPSCompute")[1:], samples=samples, rates=n.rates(h))
    sampled(kit, "mps", samples, spin, one)
    spin.read(10)
    one.close(), two.close(), spin.close()
    reply = kit.command(folder, "quit")
    try:
        code = p.p.wait(4)
    except subprocess.TimeoutExpired:
        code = None
    kit.claim("a client of a read-only folder can end the daemon" if read_only else "the daemon ends on quit", code is not None, reply=reply, code=code)
    kit.record("log", text=sh("tail -c 900 %s/control.log; tail -c 900 %s/server.log" % (logs, logs), 5, 1800))
    if read_only:
        sh("umount " + folder)
    if code is None and read_only:
        kit.command(pipe, "quit")
        kit.claim("the daemon ends on quit", p.p.wait(8) is not None)

def supervised(kit):
    _, d, status = kit.supervisor()
    kit.claim("gpumem's supervisor starts the daemon and finds it healthy", status.get("healthy"), status=status)
    kit.record("its log", text=sh("tail -c 1500 %s" % os.path.join(kit.out, "supervisor.log"), 5, 1500))
    n, offer = kit.start_node("mps", d)
    kit.record("offer at mps", **offer)
    if not offer.get("healthy"):
        raise NotTried("the device plugin offers no unit at mps")
    for name, units in (("small", 1), ("three", 3), ("ten", 10)):
        reply, env, group = kit.allocate(n, name, units)
        kit.record("allocate %d" % units, **reply)
        if not env:
            continue
        reply = kit.run_cu("most", 64, units * 2048, env=env, group=group, seconds=30)
        kit.claim("mps: a program with %d GiB gets no more" % units, 0 <= reply.get("hasMiB", -1) <= units * 1024, level=env.get("GPUMEM_ENFORCEMENT"), result=reply)
    # NVIDIA's documents say that tools attribute clients' work to the server. Then gpumem would count their memory as foreign.
    keeps = kit.cu("hold", 6000, env=env, group=group)
    kit.record("a client with 6,000 MiB", pid=keeps.p.pid, **keeps.read(20))
    busy = kit.cu("spin", 8, 64, env=env, group=group)
    busy.read(20)
    time.sleep(5)
    library = nvml.NVML(kit.o.nvml)
    _, h = library.gpu()
    mine, used = library.used_by(keeps.p.pid)
    kit.claim("NVML lists a client's memory as the client's own", mine is not None and mine >= 6000, clientMiB=mine, usedMiB=used)
    kit.record("NVML of clients", clients=[keeps.p.pid, busy.p.pid], servers=sh("pgrep -a nvidia-cuda-mps"), compute=library.processes(h, "Compute")[1:], mps=library.processes(h, "MPSCompute")[1:], samples=library.samples(h))
    kit.record("metrics", **n.request("metrics"))
    kit.record("health", **n.request("health"))
    keeps.close(), busy.close()
    _, env, group = kit.allocate(n, "grant", 3)
    holds_within(kit, "mps", 3072, env, group, limited=True)

def frameworks(kit):
    """Measures how much of a grant a framework uses, and whether it exceeds the grant."""
    for level in ("advisory", "mps"):
        n, _, _ = kit.level(level)
        running = []
        for what, units in (("torch-grant", 3), ("torch-grant", 10), ("jax-grant", 3), ("jax-grant", 10)):
            _, env, group = kit.allocate(n, "%s-%d" % (what, units), units)
            program = ["cu.py", "fill", env.get("GPUMEM_FRACTION", "0")] if kit.o.dry else ["worker.py", what, str(units * 1536)]
            running.append((what, units, env, Program(kit, [sys.executable, os.path.join(HERE, program[0])] + program[1:], env, group)))
        for what, units, env, p in running:
            reply = p.read(60)
            p.close(10)
            mine = reply.get("nvmlMineMiB")
            kit.claim("%s: %s stays within %d GiB" % (level, {"torch-grant": "PyTorch", "jax-grant": "JAX"}[what], units), None if mine is None else mine <= units * 1024, fraction=env.get("GPUMEM_FRACTION"), result=reply)
        kit.end_step()

def sharing(kit):
    """Measures how much more a shared GPU serves than an exclusive one."""
    slowest = {}
    for how in ("time-slicing", "mps"):
        d, level, extra = None, "advisory", {}
        if how == "mps":
            p, d, status = kit.supervisor()
            level = "mps"
            if not status.get("healthy"):  # NVIDIA's part can be measured without gpumem's
                kit.record("sharing with NVIDIA's daemon alone", supervisor=status)
                p.kill()
                _, pipe, _, _ = kit.any_daemon()
                d, level, extra = None, "advisory", {"CUDA_MPS_PIPE_DIRECTORY": pipe}
        n, offer = kit.start_node(level, d)
        each = max(1, offer.get("healthy", 0) // max(SHARERS))
        workers, ready, points = [], [], {}

        def more(count):
            begun = len(workers)
            for i in range(begun, count):
                _, env, group = kit.allocate(n, "s%d" % i, each)
                workers.append(Program(kit, [sys.executable, os.path.join(HERE, "worker.py"), "serve"], dict(env, **extra), group))
            ready.extend(w.read(60) for w in workers[begun:])
            slowest[how] = max(r.get("start_s", 0) for r in ready)
            kit.record("workers", how=how, units=each, ready=sum(1 for r in ready if r.get("ready")), of=len(workers), first=ready[0], slowest_s=slowest[how])
        more(1)  # alone: exclusive use
        if how == "time-slicing":
            for kind, seconds in (("decode", 4), ("graph", 4), ("full", 3)):
                share(kit, workers, how, kind, 1, seconds)
        more(max(SHARERS))
        for kind, counts, seconds in (("decode", SHARERS, 4), ("graph", SHARERS, 4), ("full", (1, 4), 3)):
            for count in counts:
                if (count > 1 or how == "mps") and kit.remaining() > seconds + 3:
                    points[kind, count] = share(kit, workers, how, kind, count, seconds)
        failed = {"%s %d" % key: point["errors"] for key, point in points.items() if point["errors"]}
        kit.claim("%s: all programs of every number run" % how, not failed and all(r.get("ready") for r in ready), errors=failed)
        eight = points.get(("graph", 8), {}).get("each") or [0]
        kit.claim("%s: eight equal programs get equal shares (within a fifth)" % how, min(eight) >= 0.8 * max(eight) > 0, kernel=True, requests=eight)
        if how == "mps":
            kit.claim("mps: eight programs serve at least as much as with time-slicing", points.get(("graph", 8), {}).get("per_s", 0) >= kit.exclusive.get("sliced", 0), kernel=True, mps=points.get(("graph", 8), {}).get("per_s"), sliced=kit.exclusive.get("sliced"))
            kit.claim("mps: start-up takes at most 10 s more than with time-slicing", slowest["mps"] <= slowest["time-slicing"] + 10, seconds=slowest)
        else:
            kit.exclusive["sliced"] = points.get(("graph", 8), {}).get("per_s", 0)
        for w in workers:
            w.close(3)
        kit.end_step()

def share(kit, workers, how, kind, count, seconds):
    """Records throughput and latency of workers that serve at the same time."""
    at = time.monotonic() + 0.3
    for w in workers[:count]:
        w.send("%s %f %f" % (kind, at, seconds))
    time.sleep(seconds * 0.7)
    library = nvml.NVML(kit.o.nvml)
    _, h = library.gpu()
    seen = {"rates": library.rates(h)[1:], "samples": [[s["pid"], s["sm"]] for s in library.samples(h)[2]], "pids": [w.p.pid for w in workers[:count]]}
    replies = [w.read(seconds + 10) for w in workers[:count]]
    rate = sum(r.get("per_s") or 0 for r in replies)
    if count == 1 and how == "time-slicing":
        kit.exclusive[kind] = rate
    return kit.record("sharing", kind=kind, how=how, sharers=count, per_s=round(rate, 1), of_exclusive=round(rate / kit.exclusive[kind], 2) if kit.exclusive.get(kind) else None,
                      p50=sorted(r.get("p50") or 0 for r in replies)[count // 2], p99=max(r.get("p99") or 0 for r in replies), each=[r.get("per_s") or 0 for r in replies], errors=[r["error"] for r in replies if r.get("error")], nvml=seen)

def full(kit):
    """Fills the GPU with grants: a program may fail within its grant, and one over its grant may harm its neighbour."""
    for level in ("advisory", "mps"):
        n, offer, d = kit.level(level)
        units = offer["healthy"] // len(kit.uuids)
        for each in (10, 3):
            sizes = [each] * (units // each) + ([units % each] if units % each else [])
            running = []
            for i, size in enumerate(sizes):
                reply, env, group = kit.allocate(n, "f%d-%d" % (each, i), size, kit.uuids[0])
                if not env:
                    kit.record("full", level=level, each=each, error=reply)
                    break
                running.append(kit.cu("fill", env["GPUMEM_FRACTION"], env=env, group=group))
            replies = [p.read(25) for p in running]
            failed = [r for r in replies if not r.get("ok")]
            _, used = nvml.NVML(kit.o.nvml).used_by(0)
            kit.claim("%s: a GPU full of programs of %d GiB has memory for each" % (level, each), not failed, programs=len(running), failed=len(failed), error=failed[0] if failed else None, usedMiB=used, grantedMiB=sum(sizes) * 1024,
                      with_context=[r.get("nvmlMineMiB") for r in replies][:3], allocatedMiB=[r.get("hasMiB") for r in replies][:3])
            for p in running:
                p.kill()
            n.close(3)
            n, offer = kit.start_node(level, d)  # a new stand-in has no pods: all units are free
        half = units // 2
        _, env_a, group_a = kit.allocate(n, "greedy", half, kit.uuids[0])
        _, env_b, group_b = kit.allocate(n, "modest", units - half, kit.uuids[0])
        if env_a and env_b:
            a = kit.cu("hold", half * 1024 + 12 * 1024, env=env_a, group=group_a)
            greedy = a.read(20)
            b = kit.cu("fill", env_b["GPUMEM_FRACTION"], env=env_b, group=group_b)
            modest = b.read(20)
            kit.claim("%s: a program 12 GiB over its grant harms no neighbour" % level, modest.get("ok"), greedy=greedy, neighbour=modest)
            a.close(), b.close()
        kit.end_step()

def fault(kit):
    """Kills a program in a kernel, and lets one write to an unmapped address: both may end their neighbours."""
    for how in ("time-slicing", "mps"):
        n, _, d = kit.level("mps" if how == "mps" else "advisory")
        _, env, group = kit.allocate(n, "victim", 3)
        _, env2, group2 = kit.allocate(n, "culprit", 3)
        # An evicted pod ends by SIGKILL. NVIDIA's documents call the server and other clients undefined after that.
        killed, other = kit.cu("spin", 20, 64, env=env2, group=group2), kit.cu("spin", 3, env=env, group=group)
        killed.read(20), other.read(20)
        time.sleep(0.8)
        killed.kill()
        neighbour, new = other.read(10), kit.run_cu("hold", 64, env=env2, seconds=8)
        kit.claim("%s: a program that is killed in a kernel harms no neighbour" % how, neighbour.get("ok") and new.get("ok"), kernel=True, neighbour=neighbour, new_client=new)
        victim = kit.cu("spin", 5, env=env, group=group)
        victim.read(20)
        time.sleep(1)
        culprit = kit.cu("fault", env=env2, group=group2).read(15)
        kit.record("fault", how=how, culprit=culprit, new_client_beside_the_victim=kit.run_cu("hold", 64, env=env2, seconds=8))
        reply = victim.read(15)
        kit.claim("%s: a fault ends its own program alone" % how, reply.get("ok"), kernel=True, victim=reply)
        victim.close()
        time.sleep(1)
        new = kit.run_cu("hold", 64, env=env2)
        kit.claim("%s: a new program starts after a fault" % how, new.get("ok"), kernel=True, result=new, status=kit.status(d) if d else None)
        time.sleep(3)
        health = n.request("health")
        kit.claim("%s: the device plugin offers the GPU after a fault" % how, health.get("healthy"), kernel=True, health=health, log=n.request("log").get("log", "")[-800:])
        kit.end_step()

def clients(kit):
    """Counts the programs that can be clients of one daemon on this GPU."""
    _, pipe, _, _ = kit.any_daemon()
    env = {"CUDA_MPS_PIPE_DIRECTORY": pipe}
    began, running, count = time.monotonic(), [], 0
    for _ in range(4):
        more = [kit.cu("hold", 2, env=env) for _ in range(16)]
        replies = [p.read(25) for p in more]
        running += more
        failed = [r for r in replies if not r.get("ok")]
        count += len(replies) - len(failed)
        kit.record("clients", started=len(running), refused=len(failed), error=failed[0] if failed else None, took_s=round(time.monotonic() - began, 1))
        if failed:
            break
    kit.claim("a daemon accepts 48 clients on a GPU", count >= 48, clients=count)

def cores(kit):
    """Measures a program that could use all multiprocessors with a share of them."""
    _, pipe, _, _ = kit.any_daemon()
    whole = None
    for percent in (100, 75, 50, 25, 10):
        env = {"CUDA_MPS_PIPE_DIRECTORY": pipe, "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(percent)}
        p = kit.cu("spin", 2, 132 * 16, env=env)
        p.read(20)
        reply = p.read(15)
        whole = whole or reply.get("launches")
        ratio = reply["launches"] / whole if whole and reply.get("launches") else 0
        kit.claim("a program with %d %% of the multiprocessors computes at most that share" % percent, 0 < ratio <= percent / 100 + 0.1, kernel=True, of_whole=round(ratio, 2), result=reply)

def require_615(kit):
    if not kit.is_615():
        raise NotTried("driver %s: limits of control groups need 615 or newer" % kit.driver)

def kernel(kit):
    """Measures level kernel, and limits of control groups without gpumem."""
    require_615(kit)
    above = os.path.join(kit.cgroups, "kubepods", "gpumem-kit")
    below = os.path.join(above, "container")
    groups = [kit.cgroups, os.path.dirname(above), os.path.join(kit.cgroups, "kubepods", "pod-gpumem-gpu-kit"), above]
    made = [g for g in groups + [below] if not os.path.exists(g)]
    for group in groups:  # a control group has the dmem controller if all groups above enable it
        os.makedirs(group, exist_ok=True)
        control = os.path.join(group, "cgroup.subtree_control")
        if os.path.exists(os.path.join(kit.cgroups, "dmem.capacity")) and "dmem" not in sh("cat " + control).split():
            with open(control, "w") as f:
                f.write("memory dmem\n" if kit.o.dry else "+dmem")
    os.makedirs(below, exist_ok=True)
    try:
        limited_groups(kit, above, below)
    finally:
        kit.end_step()
        for group in reversed([] if kit.o.dry else made):
            os.rmdir(group)

def limited_groups(kit, above, below):
    n, offer = kit.start_node("kernel", nri=True)
    kit.claim("the device plugin offers memory at kernel", offer.get("healthy"), offer=offer)
    if offer.get("healthy"):
        reply, env, _ = kit.allocate(n, "limited", 3)
        started = n.request("start limited")
        kit.claim("kernel: the device plugin limits a container before it starts", started.get("group"), level=env.get("GPUMEM_ENFORCEMENT"), result=started)
        if started.get("group"):
            holds_within(kit, "kernel", 3072, env, started["group"], limited=True)
            n.request("stop limited")
    whole = kit.run_cu("most", 1024, 1 << 20)
    for name, folder, mib, total in (("its own control group", below, 10240, 10240), ("a control group above", above, 20480, whole.get("totalMiB"))):
        rc = nvml.set_limit(kit.o.nvml, folder, mib)
        reply = kit.run_cu("most", 256, mib * 2, group=below)
        kit.claim("a program meets the limit of %s" % name, rc.startswith("0 ") and mib - 1024 <= reply.get("hasMiB", -1) <= mib, rc=rc, result=reply)
        kit.claim("with a limit of %s CUDA's total is %s" % (name, "the limit" if total == mib else "the GPU's"), reply.get("totalMiB") == total, totalMiB=reply.get("totalMiB"))
        nvml.set_limit(kit.o.nvml, folder, None)

def pair(kit):
    """Measures grants on two GPUs."""
    if len(kit.uuids) < 2:
        raise NotTried("the machine has one GPU")
    for level in ("advisory", "mps"):
        n, _, _ = kit.level(level)
        _, first, group = kit.allocate(n, "first", 3, kit.uuids[0])
        _, second, other = kit.allocate(n, "second", 3, kit.uuids[1])
        busy = kit.cu("spin", 4, env=first, group=group)
        busy.read(20)
        half, twice = kit.run_cu("hold", 1536, env=second, group=other), kit.run_cu("hold", 6144, env=second, group=other)
        kit.claim("%s: a grant on the second GPU is limited as on the first" % level, half.get("ok") and refused(twice) == (level == "mps"), half=half, twice=twice, first=busy.read(10))
        _, both, group = kit.allocate(n, "both", 3, *kit.uuids[:2])
        own = both.get("GPUMEM_ENFORCEMENT")
        replies = [kit.run_cu("hold", mib, env=dict(both, KIT_DEVICE=str(i)), group=group) for i in (0, 1) for mib in (1536, 6144)]
        kit.claim("%s: a container of two GPUs can use its grant on each" % level, all(r.get("ok") for r in replies[::2]), its_level=own, results=replies)
        kit.claim("%s: a container of two GPUs is limited as its own level promises" % level, own == "advisory" or all(refused(r) for r in replies[1::2]), its_level=own, results=replies)
        kit.end_step()

def containers(kit):
    """Runs programs in containers of containerd by NVIDIA's runtime. Their root is the machine's: no image is needed."""
    ctr, runtime = shutil.which("ctr"), shutil.which("nvidia-container-runtime")
    if not ctr or not runtime:
        raise NotTried("%s is not on this machine" % ("nvidia-container-runtime" if ctr else "ctr"))

    def run(args, env, mounts=()):
        name = "gpumem-kit-" + uuid.uuid4().hex[:12]
        command = [ctr, "run", "--rm", "--rootfs", "--read-only", "--runc-binary", runtime]
        for key, value in sorted(dict(env, PATH=os.environ["PATH"]).items()):
            command += ["--env", "%s=%s" % (key, value)]
        for path, target, mode in [(HERE, "/mnt", "ro")] + list(mounts):
            command += ["--mount", "type=bind,src=%s,dst=%s,options=rbind:%s" % (path, target, mode)]
        p = Program(kit, command + ["/", name, sys.executable, "/mnt/cu.py"] + [str(a) for a in args])
        reply = p.read(30)
        p.close()
        sh("%s tasks delete --force %s; %s containers delete %s" % (ctr, name, ctr, name))  # nothing remains after an error
        return reply
    only = {"NVIDIA_VISIBLE_DEVICES": kit.uuids[0]}
    info = run(["info"], only)
    kit.claim("a container sees its GPU, and no other", info.get("gpus") == 1, result=info)
    if kit.control:
        _, pipe, _, _ = kit.any_daemon()
        env = dict(only, CUDA_MPS_PIPE_DIRECTORY=pipe, **{LIMIT: "0=2048M"})
        mounts = [(pipe, pipe, "ro"), ("/dev/shm", "/dev/shm", "rw")]
        half, twice = run(["hold", 1024], env, mounts), run(["hold", 4096], env, mounts)
        kit.claim("a container is a client of the MPS daemon and meets its limit", half.get("ok") and refused(twice), half=half, twice=twice)
    require_615(kit)
    env = {"NVIDIA_VISIBLE_DEVICES": "nvidia.com/gpu=" + kit.uuids[0], "NVIDIA_GPU_MEMORY_LIMIT": "2048"}
    half, twice = run(["hold", 1024], env), run(["hold", 4096], env)
    kit.claim("NVIDIA's hook limits a container", half.get("ok") and refused(twice), half=half, twice=twice)

# The boxes of the first eleven add up to more than a budget: a step that ends early leaves its time to the next one.
STEPS = {"facts": (30, facts), "calls": (30, calls), "plugin": (45, plugin), "mps": (60, mps), "supervised": (75, supervised), "frameworks": (110, frameworks), "sharing": (170, sharing),
         "full": (80, full), "fault": (55, fault), "cores": (30, cores), "clients": (35, clients), "kernel": (60, kernel), "pair": (60, pair), "containers": (90, containers)}

def main():
    f = argparse.ArgumentParser(prog="run.sh")
    for name in ("out", "plugin", "node", "commit"):
        f.add_argument("--" + name, required=True, help=argparse.SUPPRESS)
    f.add_argument("--dry", action="store_true", help=argparse.SUPPRESS)
    f.add_argument("--nvml", default="", help="library of NVML, unless the loader finds it")
    f.add_argument("--budget", type=float, default=200, help="seconds for the run (default 200)")
    f.add_argument("--steps", type=lambda s: s.split(","), default=list(STEPS)[:5], help="steps to run (default %s)" % ",".join(list(STEPS)[:5]))
    o = f.parse_args()
    unknown = [s for s in o.steps if s not in STEPS]
    if unknown:
        f.error("unknown step %s: the steps are %s" % (", ".join(unknown), ", ".join(STEPS)))
    if o.dry:
        os.environ["KIT_DRY"] = "1"
    if o.nvml:
        os.environ["KIT_NVML"] = o.nvml
    try:
        driver, gpus = nvml.machine(o.nvml)
    except OSError as e:
        sys.exit("run.sh: no NVIDIA driver on this machine: %s; -dry runs against a simulated one" % e)
    if not gpus:
        sys.exit("run.sh: the NVIDIA driver lists no GPU; -dry runs against a simulated one")
    kit = Kit(o)
    kit.driver, kit.gpus, kit.uuids = driver, gpus, [g[0] for g in gpus]

    def over(*_):
        raise Over()

    def interrupted(*_):
        kit.record("interrupted")
        kit.end_step()
        kit.clean_up()
        sys.exit(1)
    signal.signal(signal.SIGALRM, over)
    signal.signal(signal.SIGTERM, interrupted)
    signal.signal(signal.SIGINT, interrupted)
    kit.record("machine", date=time.strftime("%Y-%m-%d", time.gmtime()), commit=o.commit, dry=o.dry, driver=driver, gpu=gpus[0][1], gpus=len(gpus), memoryMiB=gpus[0][2]["total"], linux=os.uname().release, steps=o.steps, budget=o.budget)
    # Python's packages come from a cold disk: another process reads them while the first steps run.
    warm = None if o.dry else subprocess.Popen([sys.executable, "-c", "import torch, jax, jax.numpy"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ, CUDA_VISIBLE_DEVICES="", JAX_PLATFORMS="cpu"), preexec_fn=prepare_child(None))
    before = [nvml.settings(o.nvml, i) for i in range(len(gpus))]
    kit.record("settings", settings=before)
    kit.control = shutil.which("nvidia-cuda-mps-control") or next(iter(glob.glob("/usr/local/nvidia/bin/nvidia-cuda-mps-control")), "")
    for name, (box, step) in STEPS.items():
        if name in o.steps:
            kit.run(name, box, step)
    if warm:
        warm.kill()
    kit.step = "settings"
    after = [nvml.settings(o.nvml, i) for i in range(len(gpus))]
    kit.claim("compute mode, persistence mode, MIG mode, power limit and clocks are unchanged", after == before, settings=after)
    kit.clean_up()
    kit.record("end", took_s=round(time.monotonic() - BEGAN, 1))

if __name__ == "__main__":
    main()
