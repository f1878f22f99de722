package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// What is asked of containers.
const (
	seesGPU   = "a container gets its GPU, and no other"
	hookSets  = "NVIDIA's hook gives a container its limit"
	clientIn  = "a container is a client of the MPS daemon, with a limit"
	kernelIn  = "a container meets the limit of its control group"
	withinIt  = "1024"
	beyondIt  = "4096"
	grantMiB  = 2048
	toolkit   = "nvidia-container-runtime"
	containrd = "ctr"
)

// containers runs programs in containers of containerd, by NVIDIA's runtime. Their root is the
// machine's, read only: no image is needed.
func (k kit) containers(ctx context.Context, a *answers) error {
	for _, program := range []string{containrd, toolkit} {
		if err := has(program); err != nil {
			return err
		}
	}
	if out, err := exec.CommandContext(ctx, containrd, "version").CombinedOutput(); err != nil {
		return cannot("containerd does not answer: %s", strings.TrimSpace(string(out)))
	}
	uuid := k.facts.gpus[0].uuid
	limited := []string{"NVIDIA_VISIBLE_DEVICES=" + uuid}

	p := k.contained(ctx, "", limited, nil, "most", fmt.Sprint(step))
	err := p.wants(false)
	if err == nil && p.GPUs != 1 {
		err = fmt.Errorf("it sees %d GPUs, want 1", p.GPUs)
	}
	a.tell(seesGPU, "", err)
	if err != nil {
		return fmt.Errorf("containers get no GPU: %w", err)
	}
	a.tell(hookSets, "", k.hook(ctx, uuid))
	a.tell(clientIn, "", k.clientContained(ctx, uuid))
	a.tell(kernelIn, "", k.at(ctx, kernelLevel, func(_ *node, _ *runtime, c container) error { return k.meets(ctx, c) }))
	return nil
}

// clientContained asks whether a container is a client of NVIDIA's daemon, which finds it in the
// machine's /dev/shm.
func (k kit) clientContained(ctx context.Context, uuid string) error {
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pipe, stop, err := k.startDaemon(ctx, dir)
	defer stop()
	if err != nil {
		return fmt.Errorf("no MPS daemon: %w", err)
	}
	env := []string{"NVIDIA_VISIBLE_DEVICES=" + uuid, "CUDA_MPS_PIPE_DIRECTORY=" + pipe, fmt.Sprintf("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=0=%dM", grantMiB)}
	mounts := []string{"type=bind,src=" + pipe + ",dst=" + pipe + ",options=rbind:ro", "type=bind,src=/dev/shm,dst=/dev/shm,options=rbind:rw"}
	return k.limited(ctx, env, mounts)
}

// limited asks whether a container can have less than its limit, and not more.
func (k kit) limited(ctx context.Context, env, mounts []string) error {
	return errors.Join(about("within", k.contained(ctx, "", env, mounts, "alloc", withinIt).wants(false)),
		about("beyond", k.contained(ctx, "", env, mounts, "alloc", beyondIt).wants(true)))
}

// hook asks whether the toolkit's hook apply-cuda-memory-limits obeys its variable, in a CDI mode.
func (k kit) hook(ctx context.Context, uuid string) error {
	if k.facts.protocol() < 3 {
		return cannot("driver %s: limits of control groups are of 615 and newer", k.facts.version)
	}
	env := []string{"NVIDIA_VISIBLE_DEVICES=nvidia.com/gpu=" + uuid, "NVIDIA_GPU_MEMORY_LIMIT=" + strconv.Itoa(grantMiB)}
	return k.limited(ctx, env, nil)
}

// meets asks whether a container meets the limit that the device plugin has given its control group.
func (k kit) meets(ctx context.Context, c container) error {
	limit, err := strconv.Atoi(c.env["GPUMEM_LIMIT_MIB"])
	if err != nil {
		return errors.New("GPUMEM_LIMIT_MIB is no number")
	}
	var env []string
	for name, value := range c.env {
		env = append(env, name+"="+value)
	}
	one := func(mib int) Probe {
		err := c.node.preStart(ctx, c.name)
		if err != nil {
			return Probe{Error: err.Error()}
		}
		group, end, err := c.runtime.start(ctx, c)
		if err != nil {
			return Probe{Error: err.Error()}
		}
		defer end()
		return k.contained(ctx, strings.TrimPrefix(group, k.cgroups), env, nil, "alloc", strconv.Itoa(mib))
	}
	return errors.Join(about(within, one(limit/2).wants(false)), about(beyond, one(limit*2).wants(true)))
}

// contained runs the CUDA program in a container of containerd, in a control group if one is named.
func (k kit) contained(ctx context.Context, group string, env, mounts []string, args ...string) (p Probe) {
	name := "gpumem-kit-" + strconv.Itoa(os.Getpid())
	command := []string{"run", "--rm", "--rootfs", "--read-only", "--runc-binary", toolkit}
	if group != "" {
		command = append(command, "--cgroup", group)
	}
	for _, v := range slices.Sorted(slices.Values(env)) {
		command = append(command, "--env", v)
	}
	for _, m := range mounts {
		command = append(command, "--mount", m)
	}
	// The folder that the program is in may be hidden in the container: it is brought there.
	dir := filepath.Dir(k.probe)
	command = append(command, "--mount", "type=bind,src="+dir+",dst=/mnt,options=rbind:ro", "/", name, "/mnt/"+filepath.Base(k.probe))
	cmd := exec.CommandContext(ctx, containrd, append(command, args...)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, k.log
	err := cmd.Run()
	if ctx.Err() != nil { // ctr has ended, and the container goes on
		for _, args := range [][]string{{"tasks", "delete", "--force", name}, {"containers", "delete", name}} {
			_ = exec.CommandContext(context.WithoutCancel(ctx), containrd, args...).Run() // there may be none
		}
	}
	if parsed := json.Unmarshal(out.Bytes(), &p); err != nil || parsed != nil {
		return Probe{Error: fmt.Sprintf("%v, and it said %q", errors.Join(err, parsed), out.String())}
	}
	return p
}
