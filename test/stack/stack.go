package stack

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"golang.org/x/sync/errgroup"
	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/checkout"
	"github.com/gpumem/gpumem/test/cluster"
	"github.com/gpumem/gpumem/test/images"
	"github.com/gpumem/gpumem/test/progress"
)

// The release that Install makes.
const (
	Release   = "gpumem"
	Namespace = "gpumem-system"
	// Version is the chart's appVersion in this checkout.
	Version = "0.2.0"
)

// MPSStandIn is the binary that takes the place of NVIDIA's MPS daemon.
const MPSStandIn = "nvidia-cuda-mps-control"

// A Stack is gpumem built from this checkout, or from the sources of another version.
type Stack struct {
	root    string // of the sources
	out     string // where what was built lies
	version string // of the chart, and so of the images
	mode    string // value of scheduler.mode; empty: as the chart has it
	log     io.Writer
}

// With builds gpumem, starts a cluster, lets work run on it, and takes it away.
func With(ctx context.Context, config cluster.Config, work func(*cluster.Cluster, *Stack) error) error {
	if err := cluster.CheckHost(); err != nil {
		return fmt.Errorf("this machine cannot run the cluster: %w", err)
	}
	s, err := Build(ctx, config.Name, config.Log)
	if err != nil {
		return err
	}
	return cluster.With(ctx, config, func(c *cluster.Cluster) error { return work(c, s) })
}

// Build compiles the binaries and writes their images into a folder of the cache, by its name.
func Build(ctx context.Context, name string, log io.Writer) (*Stack, error) {
	root, err := checkout.Root()
	if err != nil {
		return nil, err
	}
	cache, err := cluster.DefaultCacheDir()
	if err != nil {
		return nil, err
	}
	return BuildFrom(ctx, root, filepath.Join(cache, name), log)
}

// BuildMPSStandIn builds the program that takes the place of NVIDIA's MPS daemon and returns its path.
func (s *Stack) BuildMPSStandIn(ctx context.Context) (string, error) {
	return s.Binary(MPSStandIn), s.build(ctx, MPSStandIn, "./pkg/node/mps/internal/standin")
}

// BuildFrom compiles what is installed, and the command, from the sources in a folder: those
// of a release.
func BuildFrom(ctx context.Context, root, out string, log io.Writer) (*Stack, error) {
	version, err := chartVersion(root)
	if err != nil {
		return nil, err
	}
	mode, err := mode()
	if err != nil {
		return nil, err
	}
	s := &Stack{root: root, out: out, version: version, log: log}
	if err := os.MkdirAll(out, 0o755); err != nil {
		return nil, err
	}
	err = errors.Join(
		s.build(ctx, extender, "./cmd/gpumem-extender"),
		s.build(ctx, "kubectl-inspect-gpumem", "./cmd/kubectl-inspect-gpumem"),
		s.build(ctx, devicePlugin, "./cmd/gpumem-device-plugin"),
	)
	if s.hasPlugin() {
		s.mode = mode
		err = errors.Join(err, s.build(ctx, plugin, "./cmd/gpumem-scheduler"))
	}
	return s, err
}

// build compiles a program in its own folder, which may be a module of its own. Only the device plugin
// uses cgo, to load the driver's library. The tags exclude cgo from the standard library, so that Go
// compiles no package a second time for it.
func (s *Stack) build(ctx context.Context, name, source string) error {
	fmt.Fprintf(s.log, "%s: build %s\n", name, s.version)
	cgo := "0"
	if name == devicePlugin {
		cgo = "1"
	}
	return progress.Build{
		Name:     name,
		Dir:      filepath.Join(s.root, source),
		Packages: []string{"."},
		Flags:    []string{"-tags", "netgo,osusergo"},
		Link:     []string{"-ldflags", "-s -w -X main.version=v" + s.version},
		Env:      []string{"CGO_ENABLED=" + cgo, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations"},
		Output:   s.Binary(name),
	}.Run(ctx, s.log)
}

// chartVersion returns the version of the chart in a checkout.
func chartVersion(root string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, "charts", "gpumem", "Chart.yaml"))
	if err != nil {
		return "", err
	}
	var chart struct{ AppVersion string }
	err = yaml.Unmarshal(text, &chart)
	return chart.AppVersion, err
}

// Version returns the version of the chart and of the images.
func (s *Stack) Version() string { return s.version }

// Binary returns the file of a binary by its name.
func (s *Stack) Binary(name string) string { return filepath.Join(s.out, name) }

// Chart returns the folder of the chart.
func (s *Stack) Chart() string { return filepath.Join(s.root, "charts", "gpumem") }

// Sample returns a file of config/samples.
func (s *Stack) Sample(name string) string {
	return filepath.Join(s.root, "config", "samples", name)
}

// SchedulerFile returns a file of config/scheduler.
func (s *Stack) SchedulerFile(name string) string {
	return filepath.Join(s.root, "config", "scheduler", name)
}

// LoadImages loads the images of gpumem, kube-scheduler and the sample on all nodes.
func (s *Stack) LoadImages(ctx context.Context, c *cluster.Cluster) error {
	scheduler, err := c.SchedulerImageFile(ctx)
	if err != nil {
		return err
	}
	return s.LoadDefaultImages(ctx, c, scheduler)
}

// LoadDefaultImages loads the images that the chart's default and the sample need on all nodes, and
// the images of more archives.
func (s *Stack) LoadDefaultImages(ctx context.Context, c *cluster.Cluster, more ...string) error {
	archives, err := s.images(c)
	if err != nil {
		return err
	}
	archives = append(archives, more...)
	group, ctx := errgroup.WithContext(ctx)
	for _, node := range c.Nodes() {
		group.Go(func() error {
			for _, archive := range archives {
				fmt.Fprintf(s.log, "load %s on %s\n", filepath.Base(archive), node)
				if err := c.LoadImage(ctx, archive, node); err != nil {
					return fmt.Errorf("load %s on %s: %w", archive, node, err)
				}
			}
			return nil
		})
	}
	return group.Wait()
}

func (s *Stack) images(c *cluster.Cluster) ([]string, error) {
	libraries, err := images.SharedLibraries(s.Binary(devicePlugin))
	if err != nil {
		return nil, err
	}
	type program struct {
		binary, tag, user string
		files             []images.File
	}
	programs := []program{
		{extender, s.version, "65532:65532", images.Nonroot()},
		{devicePlugin, s.version, "0:0", libraries},
	}
	if s.hasPlugin() {
		programs = append(programs, program{plugin, s.version + "-kube1.36", "65532:65532", images.Nonroot()})
	}
	var archives []string
	for _, image := range programs {
		archive := filepath.Join(s.out, image.binary+".tar")
		err := images.Image{
			Name:       "ghcr.io/gpumem/" + image.binary + ":" + image.tag,
			Files:      append(images.Programs(s.Binary(image.binary)), image.files...),
			Entrypoint: []string{"/usr/local/bin/" + image.binary},
			User:       image.user,
		}.WriteFile(archive)
		if err != nil {
			return nil, fmt.Errorf("image of %s: %w", image.binary, err)
		}
		archives = append(archives, archive)
	}
	sample, err := c.SampleImageFile()
	if err != nil {
		return nil, err
	}
	return append(archives, sample), nil
}

// Install installs the chart with the values of its demo and waits until all
// of its pods are ready. It returns what Helm prints: the chart's notes.
// More values are given as Helm's --set takes them, after those of Values.
func (s *Stack) Install(ctx context.Context, c *cluster.Cluster, set ...string) (notes string, err error) {
	return s.InstallAs(ctx, c, Release, Namespace, set...)
}

// InstallAs is Install with another release, in another namespace.
func (s *Stack) InstallAs(ctx context.Context, c *cluster.Cluster, release, namespace string, set ...string) (notes string, err error) {
	args := []string{
		"upgrade", "--install", release, s.Chart(), "--namespace", namespace, "--create-namespace",
		"--values", filepath.Join(s.Chart(), "ci", "demo-values.yaml"),
		"--wait", "--timeout", "3m",
	}
	for _, value := range append(s.Values(), set...) {
		args = append(args, "--set", value)
	}
	if notes, err = s.Helm(ctx, c, args...); err != nil {
		return "", err
	}
	// Helm is content when a DaemonSet lacks as many pods as an update may take.
	_, err = s.Kubectl(ctx, c, "rollout", "status", "daemonset", "--namespace", namespace, "--selector", "app.kubernetes.io/instance="+release, "--timeout=2m")
	return notes, err
}

// Render returns what a template of the chart makes of the demo's values and
// more.
func (s *Stack) Render(ctx context.Context, c *cluster.Cluster, template string, set ...string) (string, error) {
	helm, err := c.Helm(ctx, s.log)
	if err != nil {
		return "", err
	}
	args := []string{
		"--kubeconfig", c.Kubeconfig(),
		"template", Release, s.Chart(), "--namespace", Namespace, "--validate", "--show-only", template,
		"--values", filepath.Join(s.Chart(), "ci", "demo-values.yaml"),
	}
	for _, value := range set {
		args = append(args, "--set", value)
	}
	return run(ctx, helm, args...)
}

// Apply makes objects what a text in YAML says.
func (s *Stack) Apply(ctx context.Context, c *cluster.Cluster, objects string) error {
	return s.kubectlOf(ctx, c, objects, "apply")
}

// Delete removes them.
func (s *Stack) Delete(ctx context.Context, c *cluster.Cluster, objects string) error {
	return s.kubectlOf(ctx, c, objects, "delete")
}

func (s *Stack) kubectlOf(ctx context.Context, c *cluster.Cluster, objects, verb string) error {
	kubectl, err := c.Kubectl()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, kubectl, "--kubeconfig", c.Kubeconfig(), verb, "-f", "-")
	cmd.Stdin = strings.NewReader(objects)
	_, err = output(cmd)
	return err
}

// Uninstall takes a release away and waits until its pods are gone.
func (s *Stack) Uninstall(ctx context.Context, c *cluster.Cluster, release, namespace string) error {
	if _, err := s.Helm(ctx, c, "uninstall", release, "--namespace", namespace, "--wait"); err != nil {
		return err
	}
	_, err := s.Kubectl(ctx, c, "delete", "namespace", namespace, "--timeout=1m")
	return err
}

// Helm runs helm and returns what it prints.
func (s *Stack) Helm(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	helm, err := c.Helm(ctx, s.log)
	if err != nil {
		return "", err
	}
	fmt.Fprintln(s.log, "helm", strings.Join(args[:min(len(args), 3)], " "))
	return run(ctx, helm, append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
}

// Inspect runs "kubectl inspect gpumem", found by kubectl on the PATH, and
// returns what it prints.
func (s *Stack) Inspect(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	kubectl, err := c.Kubectl()
	if err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, kubectl, append([]string{"inspect", "gpumem", "--kubeconfig", c.Kubeconfig()}, args...)...)
	cmd.Env = append(os.Environ(), "PATH="+s.out+string(os.PathListSeparator)+os.Getenv("PATH"))
	return output(cmd)
}

// Kubectl runs kubectl and returns what it prints.
func (s *Stack) Kubectl(ctx context.Context, c *cluster.Cluster, args ...string) (string, error) {
	kubectl, err := c.Kubectl()
	if err != nil {
		return "", err
	}
	return run(ctx, kubectl, append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
}

func run(ctx context.Context, name string, args ...string) (string, error) {
	return output(exec.CommandContext(ctx, name, args...))
}

// output runs a command to its end and returns its output; the error has what
// it said on standard error.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		return stdout.String(), fmt.Errorf("%s: %w\n%s", cmd, err, stderr.String())
	}
	return stdout.String(), nil
}
