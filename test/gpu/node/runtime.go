package main

import (
	"context"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"github.com/containerd/nri/pkg/adaptation"
)

// runtime stands in for a container runtime: it makes control groups, and the device plugin sets
// their limits by NRI before programs run in them. Their parents exist already (steps.py).
type runtime struct {
	nri  *adaptation.Adaptation
	root string // mount point of control groups
}

func nriSocket(dir string) string { return filepath.Join(dir, "nri.sock") }

func startRuntime(dir, root string) (*runtime, error) {
	none := filepath.Join(dir, "no-plugins-of-the-host")
	nri, err := adaptation.New("gpu-kit", "1",
		func(ctx context.Context, sync adaptation.SyncCB) error { _, err := sync(ctx, nil, nil); return err },
		func(context.Context, []*adaptation.ContainerUpdate) ([]*adaptation.ContainerUpdate, error) {
			return nil, nil
		},
		adaptation.WithSocketPath(nriSocket(dir)), adaptation.WithPluginPath(none), adaptation.WithPluginConfigPath(none))
	if err == nil {
		err = nri.Start()
	}
	if err != nil {
		return nil, err
	}
	return &runtime{nri, root}, nil
}

func (r *runtime) container(p pod) (*adaptation.PodSandbox, *adaptation.Container, string) {
	var env []string
	for _, name := range slices.Sorted(maps.Keys(p.env)) {
		env = append(env, name+"="+p.env[name])
	}
	path := "/kubepods/pod-gpumem-gpu-kit/" + p.name
	return &adaptation.PodSandbox{Namespace: namespace, Name: p.name, Uid: p.uid},
		&adaptation.Container{Id: p.container, Name: "main", Env: env, Linux: &adaptation.LinuxContainer{CgroupsPath: path}}, filepath.Join(r.root, path)
}

// start makes a container's control group and waits for the plugin's limit. It returns the group's folder.
func (r *runtime) start(ctx context.Context, p pod) (string, error) {
	sandbox, container, group := r.container(p)
	if err := os.Mkdir(group, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	if err := r.nri.StartContainer(ctx, &adaptation.StartContainerRequest{Pod: sandbox, Container: container}); err != nil {
		r.stop(ctx, p)
		return "", err
	}
	return group, nil
}

// stop lets the plugin release the container's memory while the control group is there, then removes it.
func (r *runtime) stop(ctx context.Context, p pod) {
	sandbox, container, group := r.container(p)
	_, _ = r.nri.StopContainer(ctx, &adaptation.StopContainerRequest{Pod: sandbox, Container: container})
	_ = os.Remove(group)
}
