package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/adaptation"
)

// runtime stands in for a container runtime: it makes control groups, and lets the
// device plugin set their limits by NRI before programs run in them.
type runtime struct {
	nri  *adaptation.Adaptation
	root string // where control groups are mounted

	mu    sync.Mutex
	count int // containers that were made
}

// pods is the control group of the kubelet's pods, below which the device plugin tests the driver,
// and parent the one above those of containers.
const (
	pods   = "/kubepods"
	parent = pods + "/pod-gpumem-gpu-kit"
)

func nriSocket(dir string) string { return filepath.Join(dir, "nri.sock") }

// startRuntime serves NRI on a socket in a folder.
func startRuntime(dir, root string) (*runtime, error) {
	none := filepath.Join(dir, "no-plugins-of-the-host")
	nri, err := adaptation.New("gpu-kit", "1",
		func(ctx context.Context, sync adaptation.SyncCB) error { _, err := sync(ctx, nil, nil); return err },
		func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
			return nil, nil
		},
		adaptation.WithSocketPath(nriSocket(dir)), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err != nil {
		return nil, err
	}
	if err := nri.Start(); err != nil {
		return nil, err
	}
	r := &runtime{nri: nri, root: root}
	if err := makeGroups(root); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
}

// makeGroups makes the control groups above those of containers.
func makeGroups(root string) error {
	// Controllers are there for groups below one that names them. Without the controller the driver
	// limits by itself.
	_, err := os.Stat(filepath.Join(root, "dmem.capacity"))
	dmem := err == nil
	for _, group := range []string{"/", pods, parent} {
		dir := filepath.Join(root, group)
		err := os.MkdirAll(dir, 0o755)
		if err == nil && dmem {
			err = handDown(dir)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// removeGroups takes away those that are empty: an empty control group goes with its files.
func removeGroups(root string) {
	for _, group := range []string{parent, pods} {
		_ = os.Remove(filepath.Join(root, group))
	}
}

// handDown gives the groups below one the controller dmem, where they have not got it.
func handDown(dir string) error {
	file := filepath.Join(dir, "cgroup.subtree_control")
	has, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if slices.Contains(strings.Fields(string(has)), "dmem") {
		return nil
	}
	if err := os.WriteFile(file, []byte("+dmem"), 0o644); err != nil {
		return fmt.Errorf("no dmem controller for control groups: %w", err)
	}
	return nil
}

func (r *runtime) stop() {
	r.nri.Stop()
	removeGroups(r.root)
}

// start makes a control group for a container, in which programs may run once the
// device plugin has set its limit.
func (r *runtime) start(ctx context.Context, in container) (group string, end func(), err error) {
	r.mu.Lock()
	r.count++
	path := filepath.Join(parent, strconv.Itoa(r.count))
	r.mu.Unlock()
	group = filepath.Join(r.root, path)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", nil, err
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(in.env)) {
		list = append(list, name+"="+in.env[name])
	}
	pod := &adaptation.PodSandbox{Namespace: podNamespace, Name: podName}
	c := &adaptation.Container{Name: in.name, Env: list, Linux: &adaptation.LinuxContainer{CgroupsPath: path}}
	end = func() {
		// What is reserved for the container is given back while its group is there. The plugin logs
		// what goes wrong.
		_, _ = r.nri.StopContainer(context.WithoutCancel(ctx), &adaptation.StopContainerRequest{Pod: pod, Container: c})
		_ = os.Remove(group) // an empty control group goes with its files
	}
	err = r.nri.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: pod, Container: c})
	if err != nil {
		end()
		return "", nil, err
	}
	return group, end, nil
}

// entering returns a command that goes into a control group and becomes the command
// that follows it.
func entering(group string) []string {
	return []string{"/bin/sh", "-c", `echo $$ >"$0/cgroup.procs" && exec "$@"`, group}
}
