package e2e

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/nri/pkg/api"
	"github.com/containerd/nri/pkg/stub"

	"github.com/gpumem/gpumem/test/cluster"
)

// simulatedCgroups is where a node's driver and its plugin have the control groups of its
// simulated kernel.
const simulatedCgroups = cluster.DriverState + "/cgroup"

// A runtime is what NVIDIA's container runtime and the kernel do for containers of a node:
// those with GPUs get the driver, the device files of their GPUs, and a control group in the
// simulated kernel for as long as they run. It is called before gpumem's plugin is.
type runtime struct{ m *machine }

// startRuntime lets containers that start from now on use the simulated driver.
func (m *machine) startRuntime() {
	m.Helper()
	plugin, err := stub.New(&runtime{m: m}, stub.WithPluginName("runtime"), stub.WithPluginIdx("00"),
		stub.WithSocketPath(filepath.Join(m.root, "run/nri/nri.sock")))
	if err != nil {
		m.Fatal(err)
	}
	if err := plugin.Start(m.ctx); err != nil {
		m.Fatal(err)
	}
	m.atEnd(plugin.Stop)
}

// startKernel gives the node a kernel with control groups of version 2, with or without the
// dmem controller. The plugin looks for kubepods at their root, where it is on a machine that
// is one node alone.
func (m *machine) startKernel(dmem bool) {
	m.Helper()
	m.empty(simulatedCgroups)
	controllers := "cpu memory\n"
	if dmem {
		controllers = "cpu memory dmem\n"
		var capacity strings.Builder
		for i, g := range m.gpus.GPUs {
			fmt.Fprintf(&capacity, "nvidia/00000000:%02x:00.0/vidmem %d\n", 0x10+i, g.MemoryMiB<<20)
		}
		m.write(capacity.String(), simulatedCgroups, "dmem.capacity")
	}
	m.write(controllers, simulatedCgroups, "cgroup.controllers")
	m.write(controllers, simulatedCgroups, "cgroup.subtree_control")
	for above := m.kubepods(); above != "/"; above = filepath.Dir(above) {
		m.write(controllers, simulatedCgroups, above, "cgroup.subtree_control")
	}
	if err := os.Symlink(m.kubepods()[1:], filepath.Join(m.root, simulatedCgroups, "kubepods")); err != nil {
		m.Fatal(err)
	}
}

// kubepods returns the control group of the node's pods.
func (m *machine) kubepods() string { return m.cluster.NodeCgroup(m.node) + "/kubepods" }

// gpus returns the GPUs that the runtime is to give a container, or instances of them.
func (r *runtime) gpus(c *api.Container) (minors []int) {
	for _, variable := range c.GetEnv() {
		list, ok := strings.CutPrefix(variable, "NVIDIA_VISIBLE_DEVICES=")
		if !ok {
			continue
		}
		for i, g := range r.m.gpus.GPUs {
			ids := []string{g.UUID}
			for _, d := range g.MIGDevices {
				ids = append(ids, d.UUID)
			}
			if list == "all" || slices.ContainsFunc(strings.Split(list, ","), func(id string) bool { return slices.Contains(ids, id) }) {
				minors = append(minors, i)
			}
		}
	}
	return minors
}

// CreateContainer makes the container's control group and adds the driver.
func (r *runtime) CreateContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) (*api.ContainerAdjustment, []*api.ContainerUpdate, error) {
	minors := r.gpus(c)
	if len(minors) == 0 {
		return nil, nil, nil
	}
	group := c.GetLinux().GetCgroupsPath()
	if err := r.makeGroup(group); err != nil {
		return nil, nil, err
	}
	self := filepath.Join(cluster.DriverState, "containers", c.GetId())
	r.m.write(group+"\n", self)
	adjust := &api.ContainerAdjustment{}
	bind := func(source, at string, options ...string) {
		adjust.AddMount(&api.Mount{Type: "bind", Source: source, Destination: at, Options: append(options, "rprivate")})
	}
	bind(cluster.DriverRoot, cluster.DriverRoot, "rbind", "ro")
	bind(self, "/etc/fakenvml.cgroup", "bind", "ro")
	bind("/dev/null", "/dev/nvidiactl", "bind", "rw")
	for _, minor := range minors {
		bind("/dev/null", fmt.Sprint("/dev/nvidia", minor), "bind", "rw")
	}
	return adjust, nil, nil
}

// makeGroup makes a control group, with all controllers of the root.
func (r *runtime) makeGroup(group string) error {
	root := filepath.Join(r.m.root, simulatedCgroups)
	controllers, err := os.ReadFile(filepath.Join(root, "cgroup.controllers"))
	if err != nil {
		return os.MkdirAll(filepath.Join(root, group), 0o755) // no version 2
	}
	for above := filepath.Dir(group); above != "/"; above = filepath.Dir(above) {
		r.m.write(string(controllers), simulatedCgroups, above, "cgroup.subtree_control")
	}
	return os.MkdirAll(filepath.Join(root, group), 0o755)
}

// StopContainer removes the container's control group, as its runtime does when its program
// has ended: before anybody can look after it.
func (r *runtime) StopContainer(_ context.Context, _ *api.PodSandbox, c *api.Container) ([]*api.ContainerUpdate, error) {
	return nil, os.RemoveAll(filepath.Join(r.m.root, simulatedCgroups, c.GetLinux().GetCgroupsPath()))
}

// RemovePodSandbox removes the pod's control group, as the kubelet does.
func (r *runtime) RemovePodSandbox(_ context.Context, pod *api.PodSandbox) error {
	return os.RemoveAll(filepath.Join(r.m.root, simulatedCgroups, pod.GetLinux().GetCgroupParent()))
}
