package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/gpumem/gpumem/test/cluster/internal/component"
	"github.com/gpumem/gpumem/test/cluster/internal/linux"
	"github.com/gpumem/gpumem/test/images"
)

const (
	pauseImage = "gpumem.dev/pause:1"
	// SampleImage is the name of the image that SampleImageFile writes.
	SampleImage = "ghcr.io/gpumem/gpumem-sample:0.2.0"
	// GreedyImage is the name of the image that GreedyImageFile writes.
	GreedyImage = "gpumem.dev/greedy:1"
	// SchedulerImage is the name of the image that SchedulerImageFile writes.
	SchedulerImage = "registry.k8s.io/kube-scheduler:" + component.KubernetesVersion
)

// A Cluster is a running cluster, of this process or of another.
type Cluster struct {
	dir    string
	log    io.Writer
	ca     *authority
	client kubernetes.Interface

	stopForwarder context.CancelFunc // nil when another process forwards
	forwarding    sync.WaitGroup

	mu    sync.Mutex // guards state, and the start of processes
	state *state
}

// Start builds what is missing, starts a cluster and waits until its nodes are
// ready. What an earlier cluster in the same folder has left is removed
// first. When Start fails, it leaves nothing but the logs.
func Start(ctx context.Context, config Config) (_ *Cluster, err error) {
	config, err = config.complete()
	if err != nil {
		return nil, err
	}
	if err := installPackages(ctx, config.Log); err != nil {
		return nil, err
	}
	components, err := config.build(ctx, component.Guest, component.Base, component.Kube)
	if err != nil {
		return nil, err
	}
	if err := removeLeftovers(ctx, config); err != nil {
		return nil, err
	}
	c := &Cluster{
		dir:   config.StateDir,
		log:   config.Log,
		state: &state{Name: config.Name, CacheDir: config.CacheDir, Components: components, Processes: make(map[string]*process)},
	}
	defer func() {
		if err != nil {
			stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(err, c.kill(stop))
		}
	}()
	start := time.Now()
	if err := c.start(ctx, config); err != nil {
		return nil, fmt.Errorf("start the cluster %s: %w", config.Name, err)
	}
	fmt.Fprintf(c.log, "cluster %s: %d nodes are ready after %.1f s\n", config.Name, len(config.Nodes), time.Since(start).Seconds())
	return c, nil
}

// With starts a cluster, lets work run on it, and takes it away.
func With(ctx context.Context, config Config, work func(*Cluster) error) (err error) {
	c, err := Start(ctx, config)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		err = errors.Join(err, c.Stop(ctx))
	}()
	return work(c)
}

// Attach returns the cluster in the folder stateDir, which another process has
// started and which runs. Only one process at a time may change a cluster:
// each writes down what it knows.
func Attach(stateDir string) (*Cluster, error) {
	c, err := attach(stateDir)
	if err != nil {
		return nil, err
	}
	if !c.state.Fabric.Alive() {
		return nil, fmt.Errorf("the cluster %s is down", c.state.Name)
	}
	if err := c.connectClient(); err != nil {
		return nil, err
	}
	return c, nil
}

func attach(stateDir string) (*Cluster, error) {
	dir, err := filepath.Abs(stateDir)
	if err != nil {
		return nil, err
	}
	s, err := readState(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("there is no cluster in %s: %w", dir, err)
	}
	if err != nil {
		return nil, err
	}
	c := &Cluster{dir: dir, log: io.Discard, state: s}
	if c.ca, err = loadAuthority(c.path("pki")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	return c, nil
}

// Remove stops and removes the cluster in the folder stateDir, whatever is
// left of it. That there is none is not an error.
func Remove(ctx context.Context, stateDir string) error {
	c, err := attach(stateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return c.Stop(ctx)
}

// Stop kills everything that the cluster has started and removes its folder.
// It may be called again.
func (c *Cluster) Stop(ctx context.Context) error {
	if err := c.kill(ctx); err != nil {
		return fmt.Errorf("stop the cluster %s: %w", c.state.Name, err)
	}
	return os.RemoveAll(c.dir)
}

// Name returns the name of the cluster.
func (c *Cluster) Name() string { return c.state.Name }

// Dir returns the cluster's folder.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig returns the file with which the machine's clients administer the
// cluster.
func (c *Cluster) Kubeconfig() string { return c.path("kubeconfig") }

// RESTConfig returns the same for client-go. The client's rate is not
// limited.
func (c *Cluster) RESTConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return nil, err
	}
	config.QPS = -1
	return config, nil
}

// Client returns a client that administers the cluster.
func (c *Cluster) Client() kubernetes.Interface { return c.client }

// WaitReady waits until the API server and all nodes are ready.
func (c *Cluster) WaitReady(ctx context.Context) error {
	if err := c.waitAPIServer(ctx); err != nil {
		return err
	}
	for _, node := range c.Nodes() {
		if err := c.waitNodeReady(ctx, node); err != nil {
			return err
		}
	}
	return nil
}

// Kubectl returns the path of a kubectl.
func (c *Cluster) Kubectl() (string, error) {
	link := c.path("bin", "kubectl") // in a folder without the other programs, for PATH
	if err := os.MkdirAll(filepath.Dir(link), 0o755); err != nil {
		return "", err
	}
	err := os.Symlink(c.state.Components.Program(component.Kube, "kubectl"), link)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return link, nil
}

// Scheduler returns the path of a kube-scheduler, which it builds if it is missing.
func (c *Cluster) Scheduler(ctx context.Context) (string, error) {
	dirs, err := Config{CacheDir: c.state.CacheDir, Log: c.log}.build(ctx, component.Scheduler)
	return dirs.Program(component.Scheduler, "kube-scheduler"), err
}

// AuditLog returns the file with what the API server was asked, an Event of
// audit.k8s.io/v1 on each line.
func (c *Cluster) AuditLog() string { return c.path("logs", "audit.log") }

// Helm returns the path of a helm, built when it is missing.
func (c *Cluster) Helm(ctx context.Context, log io.Writer) (string, error) {
	dirs, err := Config{CacheDir: c.state.CacheDir, Log: log}.build(ctx, component.Helm)
	return dirs.Program(component.Helm, "helm"), err
}

// Build installs the machine's packages and builds the programs that each cluster starts, and Helm.
// Start builds missing programs too; a caller uses Build to show the builds as a separate step.
func Build(ctx context.Context, config Config) error {
	config.Name = "all"
	config, err := config.complete()
	if err != nil {
		return err
	}
	if err := installPackages(ctx, config.Log); err != nil {
		return err
	}
	_, err = config.build(ctx, component.Guest, component.Base, component.Kube, component.Helm)
	return err
}

// DownloadAdvice returns commands that download Kubernetes' own binaries, for a person who would
// otherwise wait until Kubernetes has been built, or "" if there is nothing to build.
func DownloadAdvice() (string, error) {
	dir, err := sources()
	if err != nil {
		return "", err
	}
	cache, err := DefaultCacheDir()
	if err != nil {
		return "", err
	}
	missing, err := component.Builder{Sources: dir, Cache: cache}.Missing(component.Kube)
	if err != nil || !missing {
		return "", err
	}
	return component.DownloadAdvice(), nil
}

// build builds components, and the simulated driver and a program for it where their sources are.
func (c Config) build(ctx context.Context, names ...string) (component.Dirs, error) {
	sources, err := sources()
	if err != nil {
		return nil, err
	}
	builder := component.Builder{Sources: sources, Cache: c.CacheDir, Log: c.Log}
	if builder.Available(component.FakeNVML) {
		names = append(names, component.FakeNVML, component.Greedy)
	}
	return builder.Build(ctx, names...)
}

// removeLeftovers removes a cluster that was not stopped. One that another
// process of this machine starts or tests right now is left alone.
func removeLeftovers(ctx context.Context, config Config) error {
	old, err := attach(config.StateDir)
	if errors.Is(err, fs.ErrNotExist) {
		return os.RemoveAll(config.StateDir)
	}
	if err != nil {
		return err
	}
	if old.state.Owner.Alive() {
		return fmt.Errorf("the cluster %s is in use by process %d", config.Name, old.state.Owner.PID)
	}
	fmt.Fprintf(config.Log, "removing what is left of an earlier cluster %s\n", config.Name)
	return old.Stop(ctx)
}

func (c *Cluster) start(ctx context.Context, config Config) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("it took too long"))
	defer cancel()
	if err := os.MkdirAll(c.path("logs"), 0o755); err != nil {
		return err
	}
	var err error
	if c.state.Owner, err = linux.Identify(os.Getpid()); err != nil {
		return err
	}
	if err := c.state.write(c.dir); err != nil {
		return err
	}
	if err := c.writePauseImage(); err != nil {
		return err
	}
	if c.state.Fabric, err = c.startAnchor(fabric, nil); err != nil {
		return err
	}
	if err := linux.AddBridge(c.state.Fabric.PID, bridge, fabricAddress()); err != nil {
		return err
	}
	if err := c.startForwarder(ctx, config.Port, config.Forwarder); err != nil {
		return err
	}
	if err := c.writeCredentials(); err != nil {
		return err
	}
	if err := c.connectClient(); err != nil {
		return err
	}
	fmt.Fprintf(c.log, "cluster %s: starting the control plane\n", config.Name)
	if err := c.startEtcdAndAPIServer(config); err != nil {
		return err
	}
	for _, n := range config.Nodes {
		if err := c.makeNode(n); err != nil {
			return fmt.Errorf("make node %s: %w", n.Name, err)
		}
	}
	// The runtimes come up while the API server does.
	all, allCtx := errgroup.WithContext(ctx)
	all.Go(func() error {
		if err := c.waitAPIServer(allCtx); err != nil {
			return err
		}
		return c.startControllers(config)
	})
	for _, n := range config.Nodes {
		all.Go(func() error { return c.startContainerd(allCtx, n.Name) })
	}
	if err := all.Wait(); err != nil {
		return err
	}
	fmt.Fprintf(c.log, "cluster %s: starting %d nodes\n", config.Name, len(config.Nodes))
	all, allCtx = errgroup.WithContext(ctx)
	for _, n := range config.Nodes {
		all.Go(func() error { return c.startKubelet(allCtx, n.Name) })
	}
	all.Go(func() error { return c.waitDefaultServiceAccount(allCtx, metav1.NamespaceDefault) })
	if err := all.Wait(); err != nil {
		return err
	}
	if len(config.Forwarder) > 0 {
		c.state.Owner = linux.Process{}
	}
	return c.state.write(c.dir)
}

// startAnchor starts the process that holds the namespaces called name.
func (c *Cluster) startAnchor(name string, mounts []linux.Mount) (linux.Process, error) {
	cmd := exec.Command(c.state.Components.Program(component.Guest, "pause"))
	cmd.Args = []string{"gpumem-cluster-" + c.state.Name + "-" + name, "anchor"}
	cmd.Env = c.environment()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	line, err := linux.StartAnchor(cmd, mounts)
	if err != nil {
		return linux.Process{}, fmt.Errorf("make the namespaces of %s: %w", name, err)
	}
	anchor, err := adopt(cmd)
	if line != "ready\n" {
		return anchor, fmt.Errorf("make the namespaces of %s: %s", name, strings.TrimSpace(line))
	}
	return anchor, err
}

func (c *Cluster) connectClient() error {
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	c.client, err = kubernetes.NewForConfig(config)
	return err
}

func (c *Cluster) waitAPIServer(ctx context.Context) error {
	return c.poll(ctx, "the API server is ready", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return c.client.Discovery().RESTClient().Get().AbsPath("/readyz").Do(ctx).Error()
	}, "etcd", "apiserver")
}

// kill kills all processes and waits until nothing of them is left.
func (c *Cluster) kill(ctx context.Context) error {
	if c.stopForwarder != nil {
		c.stopForwarder()
		c.forwarding.Wait()
	}
	if err := c.state.Forwarder.Signal(syscall.SIGKILL); err != nil {
		return err
	}
	known := c.state.known()
	if err := linux.NewMembers(c.state.cgroup(), known...).Kill(ctx); err != nil {
		return err
	}
	for _, p := range slices.Concat(known, []linux.Process{c.state.Forwarder}) {
		if err := p.Signal(syscall.SIGKILL); err != nil {
			return err
		}
		if err := p.Wait(ctx); err != nil {
			return err
		}
	}
	return linux.RemoveCgroup(ctx, c.state.cgroup())
}

func (c *Cluster) pauseArchive() string { return c.path("pause.tar") }

func (c *Cluster) writePauseImage() error {
	return images.Image{
		Name:       pauseImage,
		Files:      []images.File{{Path: "/pause", Source: c.state.Components.Program(component.Guest, "pause")}},
		Entrypoint: []string{"/pause"},
		User:       "65535:65535",
	}.WriteFile(c.pauseArchive())
}

// SampleImageFile writes the archive of an image that prints what it was
// granted, see test/images/sample, and returns its name.
func (c *Cluster) SampleImageFile() (string, error) {
	return c.imageFile("sample.tar", images.Image{
		Name:       SampleImage,
		Files:      images.Programs(c.state.Components.Program(component.Guest, "sample")),
		Entrypoint: []string{"/usr/local/bin/sample"},
		User:       "65532:65532",
	})
}

// GreedyImageFile writes the archive of an image that takes GPU memory until it is
// refused, see test/images/greedy, and returns its name.
func (c *Cluster) GreedyImageFile() (string, error) {
	program := c.state.Components.Program(component.Greedy, "greedy")
	libraries, err := images.SharedLibraries(program)
	if err != nil {
		return "", err
	}
	return c.imageFile("greedy.tar", images.Image{
		Name:       GreedyImage,
		Files:      append(images.Programs(program), libraries...),
		Entrypoint: []string{"/usr/local/bin/greedy"},
		User:       "65532:65532",
	})
}

// SchedulerImageFile writes the archive of an image of kube-scheduler, under
// the name of the one that everybody else pulls, and returns its name.
func (c *Cluster) SchedulerImageFile(ctx context.Context) (string, error) {
	program, err := c.Scheduler(ctx)
	if err != nil {
		return "", err
	}
	return c.imageFile("kube-scheduler.tar", images.Image{
		Name:       SchedulerImage,
		Files:      images.Programs(program),
		Entrypoint: []string{"/usr/local/bin/kube-scheduler"},
		User:       "65532:65532",
	})
}

func (c *Cluster) imageFile(name string, image images.Image) (string, error) {
	file := c.path("images", name)
	if _, err := os.Stat(file); err == nil {
		return file, nil
	}
	return file, image.WriteFile(file)
}
