package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// vendorRow is a row of the table "Verified Behavior" of NVIDIA's guide "Per-GPU Compute and
// Memory Limits with MPS": a set-up, and what a program then sees.
type vendorRow struct {
	name      string
	namespace string // of the daemon below; empty: none
	variable  string // CUDA_MPS_PINNED_DEVICE_MEM_LIMIT, with %s for an amount
	groupMiB  int64  // the limit of the program's control group
	above     bool   // which its parent has instead
	percent   int    // of the multiprocessors that are seen
	limitMiB  int64  // 0: none
	totalMiB  int64  // that CUDA reports; 0: of the GPU
}

// The amounts are those of NVIDIA's GPU of 97,887 MiB.
var vendorRows = []vendorRow{
	{name: "server of 50 % and 10 GiB", namespace: "default", percent: 50, limitMiB: 10240},
	{name: "namespace of 25 % and 5 GiB", namespace: "quarter", percent: 25, limitMiB: 5120},
	{name: "namespace without limits below a limited server", namespace: "free", percent: 100},
	{name: "namespace of 75 % and 20 GiB below a server of 50 % and 10 GiB", namespace: "wide", percent: 75, limitMiB: 20480},
	{name: "client's variable of 2 GiB", namespace: "default", variable: "0=%dM", percent: 50, limitMiB: 2048},
	{name: "client's variable that names a GPU too many", namespace: "default", variable: "0=%dM,1=4096M", percent: 50, limitMiB: 0},
	{name: "limit of 30,000 MiB of the program's control group", groupMiB: 30000, percent: 100, limitMiB: 30000, totalMiB: 30000},
	{name: "limit of 48,943 MiB of a control group above", groupMiB: 48943, above: true, percent: 100, limitMiB: 48943},
	{name: "namespace of 50 %, and limit of 3,000 MiB of the control group", namespace: "half", groupMiB: 3000, percent: 50, limitMiB: 3000, totalMiB: 3000},
}

func vendorNames() []string {
	return namesOf(vendorRows, func(row vendorRow) string { return row.name })
}

// vendorMiB is the memory of NVIDIA's GPU, and step by how much programs there went on.
const (
	vendorMiB = 97887
	step      = 256
)

// scale is an amount for a GPU that has less memory than the table needs.
func (k kit) scale(mib int64) int64 {
	if total := k.facts.gpus[0].memoryMiB; total < 64<<10 {
		return max(8*step, mib*total/vendorMiB/step*step)
	}
	return mib
}

// vendor sets up each row, by the daemon and by NVML alone, with nothing of gpumem between.
func (k kit) vendor(ctx context.Context, a *answers) error {
	if k.facts.protocol() < 3 {
		return cannot("driver %s: NVIDIA's table is of 615 and newer", k.facts.version)
	}
	dir, err := os.MkdirTemp("", "gpu")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	pipe, stop, daemon := k.startDaemon(ctx, dir)
	defer stop()
	whole := k.run(ctx, container{}, "most", fmt.Sprint(step))
	if !whole.OK {
		return fmt.Errorf("a program without limits: %s", whole.Error)
	}
	a.result.SMs = whole.SMs
	for _, row := range vendorRows {
		if row.namespace != "" && daemon != nil {
			a.tell(row.name, "", cannot("%v", daemon))
			continue
		}
		got, err := k.set(ctx, pipe, row)
		if err == nil {
			err = k.judge(row, got, whole)
		}
		a.tell(row.name, fmt.Sprintf("%d multiprocessors, %d MiB, of a total of %d", got.SMs, got.HasMiB, got.TotalMiB), err)
	}
	return nil
}

// set sets a row up, and runs a program in it.
func (k kit) set(ctx context.Context, pipe string, row vendorRow) (Probe, error) {
	var c container
	if row.namespace != "" {
		if row.namespace != "default" {
			pipe = filepath.Join(pipe, row.namespace)
		}
		c = c.with("CUDA_MPS_PIPE_DIRECTORY=" + pipe)
	}
	if row.variable != "" {
		limit := k.scale(max(row.limitMiB, 2048))
		c = c.with("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT=" + fmt.Sprintf(row.variable, limit))
	}
	if row.groupMiB == 0 {
		return k.run(ctx, c, "most", fmt.Sprint(step)), nil
	}
	if err := makeGroups(k.cgroups); err != nil {
		return Probe{}, cannot("no control group to be limited: %v", err)
	}
	defer removeGroups(k.cgroups)
	above := filepath.Join(k.cgroups, parent)
	c.group = filepath.Join(above, "vendor")
	if err := os.MkdirAll(c.group, 0o755); err != nil {
		return Probe{}, err
	}
	defer os.Remove(c.group) // an empty control group goes with its files
	limited := c.group
	if row.above {
		limited = above
	}
	limit := func(ctx context.Context, mib int64) error {
		p := k.run(ctx, container{}, "limit", fmt.Sprint(mib), k.facts.gpus[0].uuid, limited, cmp.Or(k.library, "libnvidia-ml.so.1"))
		return about("nvmlDeviceSetMemoryLimits_v1", p.wants(false))
	}
	if err := limit(ctx, k.scale(row.groupMiB)); err != nil {
		return Probe{}, err
	}
	defer func() { _ = limit(context.WithoutCancel(ctx), 0) }() // the group goes
	return k.run(ctx, c, "most", fmt.Sprint(step)), nil
}

// judge compares what a program saw with a row.
func (k kit) judge(row vendorRow, got, whole Probe) error {
	if !got.OK {
		return errors.New(got.Error)
	}
	var errs []error
	if want := whole.SMs * row.percent / 100; got.SMs < want-max(4, want/20) || got.SMs > want+2 {
		errs = append(errs, fmt.Errorf("it sees %d multiprocessors, want %d", got.SMs, want))
	}
	total := whole.TotalMiB
	if row.totalMiB > 0 {
		total = k.scale(row.totalMiB)
	}
	if got.TotalMiB != total {
		errs = append(errs, fmt.Errorf("CUDA reports a total of %d MiB, want %d", got.TotalMiB, total))
	}
	switch limit := k.scale(row.limitMiB); {
	case row.limitMiB == 0 && got.HasMiB < whole.HasMiB*9/10:
		errs = append(errs, fmt.Errorf("it could have %d MiB, and without limits %d: want no limit", got.HasMiB, whole.HasMiB))
	case row.limitMiB > 0 && (got.HasMiB > limit || got.HasMiB < limit-contextMiB):
		errs = append(errs, fmt.Errorf("it could have %d MiB, want %d less CUDA's context", got.HasMiB, limit))
	}
	return errors.Join(errs...)
}

// contextMiB is the most that CUDA's context takes of a limit, and a last step.
const contextMiB = 1024

// serverName is that of the daemon's server.
const serverName = "gpumem"

// vendorNamespaces are those of the rows, in per cent of the multiprocessors and MiB; 0: no limit.
var vendorNamespaces = []struct {
	name    string
	percent int
	mib     int64
}{{"quarter", 25, 5120}, {"free", 0, 0}, {"wide", 75, 20480}, {"half", 50, 0}}

// startDaemon starts NVIDIA's daemon alone: with protocol 3 it has the server and namespaces of
// the rows. pipe is the directory of a client that is in no namespace.
func (k kit) startDaemon(ctx context.Context, dir string) (pipe string, stop func(), err error) {
	if err := has(mpsControl); err != nil {
		return "", func() {}, err
	}
	root, logs := filepath.Join(dir, "pipe"), filepath.Join(dir, "log")
	pipe = root
	args, ready := []string{"-f", "-multiuser-server"}, filepath.Join(root, "control")
	err = errors.Join(os.MkdirAll(root, 0o755), os.MkdirAll(logs, 0o755))
	if k.facts.protocol() == 3 {
		file := filepath.Join(dir, "mps.toml")
		args, pipe = []string{"-p", "3", "-m", "-f", "-a", file}, filepath.Join(root, serverName)
		ready = filepath.Join(pipe, "wide", "control")
		err = errors.Join(err, os.WriteFile(file, []byte(k.daemonConfig()), 0o644))
	}
	if err != nil {
		return pipe, func() {}, err
	}
	cmd, end := lasting(ctx, mpsControl, args...)
	cmd.Env = append(os.Environ(), "CUDA_MPS_PIPE_DIRECTORY="+root, "CUDA_MPS_LOG_DIRECTORY="+logs)
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	cmd.WaitDelay = 10 * time.Second
	stdin, err := cmd.StdinPipe() // it ends when its input does
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		end()
		return pipe, func() {}, err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop = func() {
		_ = stdin.Close()
		end()
		<-ended
	}
	err = wait(ctx, k.patience, func() error {
		select {
		case why := <-ended:
			ended <- why
			return fmt.Errorf("it has ended: %w: %s", errors.Join(errEnded, why), strings.TrimSpace(said.String()))
		default:
		}
		_, err := os.Stat(ready)
		return err
	})
	return pipe, stop, err
}

var errEnded = errors.New("the daemon")

// daemonConfig is the daemon's configuration file (NVIDIA, "MPS v3 Configuration File").
func (k kit) daemonConfig() string {
	var config strings.Builder
	config.WriteString("schema_version = \"1.0\"\n\n[features.memacct]\nenabled = true\naudit_log = true\n\n[servers." + serverName + "]\n" + k.terms(50, 10240))
	for _, n := range vendorNamespaces {
		fmt.Fprintf(&config, "\n[servers.%s.namespaces.%s]\n%s", serverName, n.name, k.terms(n.percent, n.mib))
	}
	return config.String()
}

// terms are lines of the daemon's configuration; 0 is no limit.
func (k kit) terms(percent int, mib int64) (lines string) {
	if mib > 0 {
		lines += fmt.Sprintf("pinned_memory_limit = \"%dM\"\n", k.scale(mib))
	}
	if percent > 0 {
		lines += fmt.Sprintf("active_thread_percentage = \"%d\"\n", percent)
	}
	return lines
}
