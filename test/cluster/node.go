package cluster

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"text/template"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	kubeletconfig "k8s.io/kubelet/config/v1beta1"
	"sigs.k8s.io/yaml"

	"golang.org/x/sys/unix"

	"github.com/gpumem/gpumem/test/cluster/internal/component"
	"github.com/gpumem/gpumem/test/cluster/internal/linux"
)

// DriverRoot is where a node, and so a container that mounts it, has its
// simulated driver.
const DriverRoot = "/run/nvidia/driver"

// DriverState is where the processes of a node have what they share of its simulated
// driver: what they have of its GPUs, and the control groups of its kernel. It is a file
// system of its own, as a driver's device files are: who mounts the driver to read only
// can still use it.
const DriverState = DriverRoot + "/etc/fakenvml.json.d"

// NodeDir returns the folder on this machine with what is the node's own.
// Below it, lib is the node's /var/lib, log its /var/log, driver its DriverRoot and
// driver-state its DriverState.
func (c *Cluster) NodeDir(node string) string { return c.path("nodes", node) }

// NodeRoot returns the folder on this machine through which the node's files are
// seen as the node sees them, its /run among them.
func (c *Cluster) NodeRoot(node string) (string, error) {
	n, err := c.nodeState(node)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("/proc/%d/root", n.Anchor.PID), nil
}

// NodeCgroup returns the control group that all of a node's processes are below. The kubelet's
// own is kubepods in it.
func (c *Cluster) NodeCgroup(node string) string { return c.state.cgroup() + "/" + node }

// SetGPUs replaces the description of the node's GPUs at once, while it runs.
// The driver library is put beside it when it was missing.
func (c *Cluster) SetGPUs(node string, description []byte) error {
	if _, err := c.nodeState(node); err != nil {
		return err
	}
	return c.writeDriver(node, description)
}

func (c *Cluster) writeDriver(node string, description []byte) error {
	driver := filepath.Join(c.NodeDir(node), "driver")
	for _, dir := range []string{"etc", "usr/lib64"} {
		if err := os.MkdirAll(filepath.Join(driver, dir), 0o755); err != nil {
			return err
		}
	}
	library := filepath.Join(driver, "usr/lib64/libnvidia-ml.so.1")
	if _, err := os.Stat(library); errors.Is(err, fs.ErrNotExist) {
		if c.state.Components[component.FakeNVML] == "" {
			return fmt.Errorf("node %s cannot have GPUs: the sources of the simulated driver (test/fakenvml) were not there when the cluster started", node)
		}
		content, err := os.ReadFile(c.state.Components.Program(component.FakeNVML, "libnvidia-ml.so.1"))
		if err != nil {
			return err
		}
		if err := writeFileAtomic(library, content); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Base(library), filepath.Join(filepath.Dir(library), "libcuda.so.1")); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	return writeFileAtomic(filepath.Join(driver, "etc/fakenvml.json"), description)
}

// StartBesideControlPlane starts a command in the control plane's network, where
// kube-scheduler calls extenders on loopback. The file scheduler.kubeconfig in
// Dir leads from there to the API server, with kube-scheduler's rights.
func (c *Cluster) StartBesideControlPlane(cmd *exec.Cmd) error {
	if err := linux.StartIn(c.state.Fabric.PID, cmd); err != nil {
		return fmt.Errorf("run %s beside the control plane: %w", filepath.Base(cmd.Path), err)
	}
	return nil
}

// DialBesideControlPlane connects to a program in the control plane's network.
func (c *Cluster) DialBesideControlPlane(ctx context.Context, network, address string) (net.Conn, error) {
	return linux.DialIn(ctx, c.state.Fabric.PID, network, address)
}

// StartOnNode starts a command in the namespaces of a node: it sees the node's
// network, its /run and its /var/lib.
func (c *Cluster) StartOnNode(node string, cmd *exec.Cmd) error {
	n, err := c.nodeState(node)
	if err != nil {
		return err
	}
	if err := linux.StartIn(n.Anchor.PID, cmd); err != nil {
		return fmt.Errorf("run %s on node %s: %w", filepath.Base(cmd.Path), node, err)
	}
	return nil
}

// RunOnNode runs a command in the namespaces of a node to its end.
func (c *Cluster) RunOnNode(node string, cmd *exec.Cmd) error {
	if err := c.StartOnNode(node, cmd); err != nil {
		return err
	}
	return cmd.Wait()
}

// NodePID returns the number that a process on a node has there, which is what
// the node's programs know it by, from the number that it has on this machine.
func NodePID(pid int) (int, error) { return linux.InnerPID(pid) }

// LoadImage puts the images of an archive, such as package images writes, on
// the named nodes, or on all.
func (c *Cluster) LoadImage(ctx context.Context, archive string, nodes ...string) error {
	if len(nodes) == 0 {
		nodes = c.Nodes()
	}
	for _, node := range nodes {
		f, err := os.Open(archive)
		if err != nil {
			return err
		}
		// Through standard input, because the node may not see the file.
		cmd := exec.CommandContext(ctx, c.state.Components.Program(component.Base, "ctr"),
			"--namespace=k8s.io", "images", "import", "--snapshotter="+c.snapshotter(), "--local", "-")
		cmd.Stdin = f
		var output bytes.Buffer
		cmd.Stdout = &output
		cmd.Stderr = &output
		err = c.RunOnNode(node, cmd)
		f.Close()
		if err != nil {
			return fmt.Errorf("load %s on node %s: %w: %s", archive, node, err, bytes.TrimSpace(output.Bytes()))
		}
	}
	return nil
}

// Nodes returns the names of the nodes, in the order of the configuration.
func (c *Cluster) Nodes() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	var names []string
	for _, n := range c.state.Nodes {
		names = append(names, n.Name)
	}
	return names
}

func (c *Cluster) nodeState(name string) (nodeState, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.state.node(name)
}

// makeNode makes the node's files, namespaces and network.
func (c *Cluster) makeNode(config Node) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, err := c.state.node(config.Name); err == nil {
		return errors.New("there is one already")
	}
	if c.state.NextIndex > 250 {
		return errors.New("no addresses are left")
	}
	c.state.NextIndex++
	n := nodeState{Node: config, Index: c.state.NextIndex}
	dir := c.NodeDir(n.Name)
	for _, sub := range []string{"cni", "lib/kubelet/device-plugins", "log/pods", "driver/etc/fakenvml.json.d", "driver-state"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return err
		}
	}
	// Programs of any user have memory of the GPUs.
	if err := os.Chmod(filepath.Join(dir, "driver-state"), 0o777); err != nil {
		return err
	}
	if err := linux.MakeCgroup(c.NodeCgroup(n.Name)); err != nil {
		return err
	}
	var err error
	n.Anchor, err = c.startAnchor(n.Name, []linux.Mount{
		{Target: "/run"},
		{Source: filepath.Join(dir, "driver"), Target: DriverRoot},
		{Source: filepath.Join(dir, "driver-state"), Target: DriverState},
		{Source: filepath.Join(dir, "lib"), Target: "/var/lib"},
		{Source: filepath.Join(dir, "log"), Target: "/var/log"},
	})
	if err != nil {
		return err
	}
	c.state.Nodes = append(c.state.Nodes, n)
	if err := c.state.write(c.dir); err != nil {
		return err
	}
	if config.GPUs != nil {
		if err := c.writeDriver(n.Name, config.GPUs); err != nil {
			return err
		}
	}
	if err := c.connect(n); err != nil {
		return err
	}
	return c.writeNodeFiles(n)
}

// connect puts the node and its pods on the fabric. A node sends everything
// there, where each node's pods are known.
func (c *Cluster) connect(n nodeState) error {
	port := fmt.Sprintf("node%d", n.Index)
	if err := linux.AddPort(c.state.Fabric.PID, bridge, port, n.Anchor.PID, netip.PrefixFrom(n.address(), 16)); err != nil {
		return err
	}
	everywhere := netip.MustParsePrefix("0.0.0.0/0")
	if err := linux.AddRoute(n.Anchor.PID, everywhere, fabricAddress().Addr()); err != nil {
		return err
	}
	if n.Index == 1 {
		// The control plane runs no kube-proxy: that of the first node leads it to
		// Services.
		if err := linux.AddRoute(c.state.Fabric.PID, netip.MustParsePrefix(serviceNetwork), n.address()); err != nil {
			return err
		}
	}
	return linux.AddRoute(c.state.Fabric.PID, n.pods(), n.address())
}

// writeNodeFiles writes the credentials and the configuration of what runs on
// the node.
func (c *Cluster) writeNodeFiles(n nodeState) error {
	dir := c.NodeDir(n.Name)
	server := "https://" + apiServerAddress
	if err := c.writeKubeconfig(filepath.Join(dir, "kubelet.kubeconfig"), "kubelet-"+n.Name, server, "system:node:"+n.Name, "system:nodes"); err != nil {
		return err
	}
	if err := c.ca.server("kubelet-server-"+n.Name, n.Name, n.address().String()); err != nil {
		return err
	}
	kubelet, err := c.kubeletConfig(n)
	if err != nil {
		return err
	}
	cni, err := json.MarshalIndent(cniConfig(n.pods()), "", "  ")
	if err != nil {
		return err
	}
	containerd, err := c.containerdConfig(n)
	if err != nil {
		return err
	}
	proxy, err := yaml.Marshal(c.kubeProxyConfig(n))
	if err != nil {
		return err
	}
	for name, content := range map[string][]byte{
		"kubelet.yaml":        kubelet,
		"kube-proxy.yaml":     proxy,
		"containerd.toml":     containerd,
		"cni/10-ptp.conflist": cni,
		"resolv.conf":         []byte("nameserver " + dnsIP + "\n"),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// kubeletConfig returns the kubelet's configuration with the node's own
// changes.
func (c *Cluster) kubeletConfig(n nodeState) ([]byte, error) {
	resolvConf := filepath.Join(c.NodeDir(n.Name), "resolv.conf")
	full := int32(100)
	yes, no := true, false
	config := kubeletconfig.KubeletConfiguration{
		TypeMeta: metav1.TypeMeta{APIVersion: kubeletconfig.SchemeGroupVersion.String(), Kind: "KubeletConfiguration"},
		Authentication: kubeletconfig.KubeletAuthentication{
			X509:      kubeletconfig.KubeletX509Authentication{ClientCAFile: c.path("pki", "ca.crt")},
			Webhook:   kubeletconfig.KubeletWebhookAuthentication{Enabled: &yes},
			Anonymous: kubeletconfig.KubeletAnonymousAuthentication{Enabled: &no},
		},
		Authorization:      kubeletconfig.KubeletAuthorization{Mode: kubeletconfig.KubeletAuthorizationModeWebhook},
		TLSCertFile:        c.path("pki", "kubelet-server-"+n.Name+".crt"),
		TLSPrivateKeyFile:  c.path("pki", "kubelet-server-"+n.Name+".key"),
		HealthzBindAddress: "127.0.0.1",

		CgroupDriver: "cgroupfs",
		CgroupRoot:   c.NodeCgroup(n.Name),
		// Both versions of control groups will do.
		FailCgroupV1: &no,
		// The kubelet would look for the file system below its folder, which
		// in a container it does not always find.
		LocalStorageCapacityIsolation: &no,
		FailSwapOn:                    &no,

		ContainerRuntimeEndpoint: "unix:///run/containerd/containerd.sock",
		ClusterDNS:               []string{dnsIP},
		ClusterDomain:            "cluster.local",
		ResolverConfig:           &resolvConf,
		MakeIPTablesUtilChains:   &no,
		MaxPods:                  250,
		RegisterWithTaints:       n.Taints,
		// Where it is by default, it would be made on the machine.
		VolumePluginDir: "/var/lib/kubelet/volume-plugins",

		// A disk that is nearly full is no business of the tests.
		EvictionHard: map[string]string{
			"memory.available": "0%", "nodefs.available": "0%", "nodefs.inodesFree": "0%", "imagefs.available": "0%", "imagefs.inodesFree": "0%",
		},
		ImageGCHighThresholdPercent: &full,
	}
	if err := yaml.Unmarshal(n.Kubelet, &config); err != nil {
		return nil, fmt.Errorf("the kubelet's configuration for node %s: %w", n.Name, err)
	}
	return yaml.Marshal(config)
}

func (c *Cluster) kubeProxyConfig(n nodeState) map[string]any {
	return map[string]any{
		"apiVersion":       "kubeproxy.config.k8s.io/v1alpha1",
		"kind":             "KubeProxyConfiguration",
		"clientConnection": map[string]any{"kubeconfig": c.path("kube-proxy.kubeconfig")},
		"clusterCIDR":      podNetwork,
		"hostnameOverride": n.Name,
		"mode":             "nftables",
		// These are the machine's, not the network namespace's: leave them.
		"conntrack": map[string]any{"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
	}
}

// cniConfig gives each pod an address of the node's network and a link to the
// node.
func cniConfig(pods netip.Prefix) map[string]any {
	return map[string]any{
		"cniVersion": "1.0.0",
		"name":       "pods",
		"plugins": []any{map[string]any{
			"type": "ptp",
			"ipam": map[string]any{
				"type":   "host-local",
				"ranges": []any{[]any{map[string]any{"subnet": pods.String()}}},
				"routes": []any{map[string]any{"dst": "0.0.0.0/0"}},
			},
		}},
	}
}

var containerdTemplate = template.Must(template.New("containerd.toml").Parse(`version = 3
root = "/var/lib/containerd"
state = "/run/containerd"

[grpc]
  address = "/run/containerd/containerd.sock"

# Where it is by default, it would be made on the machine.
[plugins."io.containerd.internal.v1.opt"]
  path = "/var/lib/containerd/opt"

[plugins."io.containerd.cri.v1.images"]
  snapshotter = "{{.Snapshotter}}"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{{.Pause}}"

[plugins."io.containerd.cri.v1.runtime"]
  # Not every root may lower the score.
  restrict_oom_score_adj = true
  tolerate_missing_hugetlb_controller = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{{.CNIPrograms}}"]
    conf_dir = "{{.CNIConfig}}"
  [plugins."io.containerd.cri.v1.runtime".containerd]
    default_runtime_name = "runc"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
        SystemdCgroup = false
`))

func (c *Cluster) containerdConfig(n nodeState) ([]byte, error) {
	var out bytes.Buffer
	err := containerdTemplate.Execute(&out, map[string]string{
		"Snapshotter": c.snapshotter(),
		"Pause":       pauseImage,
		"CNIPrograms": c.state.Components[component.Base],
		"CNIConfig":   filepath.Join(c.NodeDir(n.Name), "cni"),
	})
	return out.Bytes(), err
}

// snapshotter returns the way in which containers share images: layers where
// the file system below the cluster's folder can be one, else copies.
func (c *Cluster) snapshotter() string {
	var info unix.Statfs_t
	if err := unix.Statfs(c.dir, &info); err == nil && info.Type == unix.OVERLAYFS_SUPER_MAGIC {
		return "native"
	}
	return "overlayfs"
}

// startContainerd starts the node's container runtime and gives it the image
// that holds pods.
func (c *Cluster) startContainerd(ctx context.Context, node string) error {
	name := "containerd@" + node
	program := c.state.Components.Program(component.Base, "containerd")
	if err := c.run(name, node, program, "--config="+filepath.Join(c.NodeDir(node), "containerd.toml")); err != nil {
		return err
	}
	return c.poll(ctx, name+" has the pause image", func(ctx context.Context) error {
		return c.LoadImage(ctx, c.pauseArchive(), node)
	}, name)
}

// startKubelet starts what makes the node one of the cluster, and waits until
// it is ready.
func (c *Cluster) startKubelet(ctx context.Context, node string) error {
	n, err := c.nodeState(node)
	if err != nil {
		return err
	}
	var labels []string
	for _, key := range slices.Sorted(maps.Keys(n.Labels)) {
		labels = append(labels, key+"="+n.Labels[key])
	}
	dir := c.NodeDir(node)
	kubelet := "kubelet@" + node
	err = c.runKube(kubelet, node, "kubelet",
		"--config="+filepath.Join(dir, "kubelet.yaml"),
		"--hostname-override="+node,
		"--kubeconfig="+filepath.Join(dir, "kubelet.kubeconfig"),
		"--node-ip="+n.address().String(),
		"--node-labels="+strings.Join(labels, ","),
	)
	if err != nil {
		return err
	}
	// kube-proxy takes the node's address from the object.
	err = c.poll(ctx, "node "+node+" is registered", func(ctx context.Context) error {
		_, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		return err
	}, kubelet)
	if err != nil {
		return err
	}
	if err := c.runKube("kube-proxy@"+node, node, "kube-proxy", "--config="+filepath.Join(dir, "kube-proxy.yaml")); err != nil {
		return err
	}
	return c.waitNodeReady(ctx, node)
}

func (c *Cluster) waitNodeReady(ctx context.Context, node string) error {
	return c.poll(ctx, "node "+node+" is Ready", func(ctx context.Context) error {
		n, err := c.client.CoreV1().Nodes().Get(ctx, node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		for _, condition := range n.Status.Conditions {
			if condition.Type == corev1.NodeReady {
				if condition.Status == corev1.ConditionTrue {
					return nil
				}
				return fmt.Errorf("it is not: %s", condition.Message)
			}
		}
		return errors.New("it has not said so")
	}, "containerd@"+node, "kubelet@"+node)
}
