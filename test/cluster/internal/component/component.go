package component

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Versions of Kubernetes and containerd. components/go.mod pins the same ones.
const (
	KubernetesVersion = "v1.36.3"
	containerdVersion = "v2.3.7"
)

// Names of the components, with the programs in each.
const (
	Kube        = "kube"        // the programs of Kubernetes: links to one program, whose name selects the part
	Base        = "base"        // server (etcd), containerd, containerd-shim-runc-v2, ctr, ptp, host-local, loopback
	Scheduler   = "scheduler"   // kube-scheduler, for its image and for benchmarks
	Guest       = "guest"       // pause, sample
	Helm        = "helm"        // helm
	CertManager = "certmanager" // certmanager: the controllers of cert-manager
	Kueue       = "kueue"       // kueue
	FakeNVML    = "fakenvml"    // libnvidia-ml.so.1, which is libcuda.so.1 too
	Greedy      = "greedy"      // greedy
)

// A recipe describes how to build one component.
type recipe struct {
	name     string
	module   string   // folder of the Go module, relative to the sources
	sources  []string // files and folders that the result depends on, relative to the sources
	packages []string // Go packages to build
	flags    []string // flags that select files: -tags
	link     []string // flags of the linker
	aliases  []string // further names of the only program
	compiler []string // a C compiler and its arguments, which replace go build
	output   string   // name of the file that the C compiler writes
	estimate string   // duration of the first build on two cores
}

// recipes lists all components in the order in which they are built. The modules share the versions
// of all libraries (TestModulesShareVersions), and the flags do not change compiled packages: so Go
// compiles each package once. Kube comes first because it contains most packages of the others.
func recipes() []recipe {
	const components = "cluster/components"
	link := []string{"-ldflags", "-s -w -X k8s.io/component-base/version.gitVersion=" + KubernetesVersion +
		" -X github.com/containerd/containerd/v2/version.Version=" + containerdVersion}
	program := func(name, estimate string, packages ...string) recipe {
		return recipe{name: name, module: components, sources: []string{components + "/go.mod", components + "/go.sum", components + "/kube"},
			packages: packages, link: link, estimate: estimate}
	}
	ownModule := func(name, estimate, pkg string) recipe {
		folder := components + "/" + name
		return recipe{name: name, module: folder, sources: []string{folder}, packages: []string{pkg}, link: link, estimate: estimate}
	}
	base := program(Base, "30 s",
		"github.com/containerd/containerd/v2/cmd/containerd",
		"github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2",
		"github.com/containerd/containerd/v2/cmd/ctr",
		"github.com/containernetworking/plugins/plugins/ipam/host-local",
		"github.com/containernetworking/plugins/plugins/main/loopback",
		"github.com/containernetworking/plugins/plugins/main/ptp",
		"go.etcd.io/etcd/server/v3")
	base.flags = []string{"-tags", "no_btrfs,no_devmapper,no_zfs"}
	kube := program(Kube, "3 min", "./kube")
	kube.aliases = kubePrograms()
	return []recipe{
		kube,
		base,
		program(Scheduler, "10 s", "k8s.io/kubernetes/cmd/kube-scheduler"),
		program(Helm, "10 s", "helm.sh/helm/v3/cmd/helm"),
		{
			name:     Guest,
			module:   ".",
			sources:  []string{"images/pause", "images/sample"},
			packages: []string{"./images/pause", "./images/sample"},
			link:     link,
			estimate: "10 s",
		},
		ownModule(CertManager, "2 min", "."),
		ownModule(Kueue, "4 min", "tool"),
		{
			name:     FakeNVML,
			sources:  []string{"fakenvml/src"},
			compiler: []string{"gcc", "-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1"},
			output:   "libnvidia-ml.so.1",
			estimate: "1 s",
		},
		{
			name:     Greedy,
			sources:  []string{"images/greedy"},
			compiler: []string{"gcc", "-O2"},
			output:   "greedy",
			estimate: "1 s",
		},
	}
}

// A Builder makes components.
type Builder struct {
	Sources string    // the folder of this repository's tests
	Cache   string    // where results are kept
	Log     io.Writer // progress
}

// Dirs maps the names of components to the folders that hold them.
type Dirs map[string]string

// Program returns the path of a file of a component.
func (d Dirs) Program(component, name string) string {
	return filepath.Join(d[component], name)
}

// Build returns the folders of the named components, after making those that
// are not there yet.
func (b Builder) Build(ctx context.Context, names ...string) (Dirs, error) {
	all := recipes()
	slices.SortStableFunc(names, func(a, b string) int { return cmp.Compare(position(all, a), position(all, b)) })
	dirs := make(Dirs)
	var missing []recipe
	for _, name := range slices.Compact(names) {
		if name == Kube {
			kubernetes, err := prebuilt(ctx)
			if err != nil {
				return nil, err
			}
			if kubernetes != "" {
				dirs[name] = kubernetes
				continue
			}
		}
		i := position(all, name)
		if i < 0 {
			return nil, fmt.Errorf("there is no component %q", name)
		}
		r := all[i]
		hash, err := b.hash(r)
		if err != nil {
			return nil, fmt.Errorf("component %s: %w", name, err)
		}
		dirs[name] = filepath.Join(b.Cache, "components", name, hash)
		if _, err := os.Stat(dirs[name]); err != nil {
			missing = append(missing, r)
		}
	}
	if len(missing) == 0 {
		return dirs, nil
	}

	unlock, err := lock(ctx, filepath.Join(b.Cache, "components", ".lock"), b.Log)
	if err != nil {
		return nil, err
	}
	defer unlock()
	for _, r := range missing {
		if err := b.build(ctx, r, dirs[r.name]); err != nil {
			return nil, fmt.Errorf("build of component %s: %w", r.name, err)
		}
	}
	return dirs, nil
}

// Missing reports whether Build would build a component.
func (b Builder) Missing(name string) (bool, error) {
	if name == Kube && os.Getenv(kubernetesVariable) != "" {
		return false, nil
	}
	all := recipes()
	hash, err := b.hash(all[position(all, name)])
	if err != nil {
		return false, err
	}
	_, err = os.Stat(filepath.Join(b.Cache, "components", name, hash))
	return err != nil, nil
}

// Available says whether the sources of a component are there.
func (b Builder) Available(name string) bool {
	all := recipes()
	i := position(all, name)
	if i < 0 {
		return false
	}
	_, err := b.files(all[i])
	return err == nil
}

func position(all []recipe, name string) int {
	return slices.IndexFunc(all, func(r recipe) bool { return r.name == name })
}

func (b Builder) build(ctx context.Context, r recipe, dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil // another process has made it while we waited for the lock
	}
	parent := filepath.Dir(dir)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	work, err := os.MkdirTemp(parent, ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	if err := os.Chmod(work, 0o755); err != nil {
		return err
	}
	start := time.Now()
	fmt.Fprintf(b.Log, "%s: build, about %s the first time on two cores\n", r.name, r.estimate)
	if err := b.compile(ctx, r, work, b.Log); err != nil {
		return err
	}
	for _, alias := range r.aliases {
		if err := os.Symlink(r.name, filepath.Join(work, alias)); err != nil {
			return err
		}
	}
	if err := os.Rename(work, dir); err != nil {
		return err
	}
	fmt.Fprintf(b.Log, "%s: built in %s\n", r.name, round(time.Since(start)))
	return nil
}

// hash names the result of a recipe.
func (b Builder) hash(r recipe) (string, error) {
	files, err := b.files(r)
	if err != nil {
		return "", err
	}
	h := sha256.New()
	fmt.Fprintf(h, "%q %q %q %q %q %q %q\n", runtime.Version(), runtime.GOARCH, r.packages, r.flags, r.link, r.aliases, r.compiler)
	for _, name := range files {
		content, err := os.ReadFile(filepath.Join(b.Sources, name))
		if err != nil {
			return "", err
		}
		fmt.Fprintf(h, "%q %x\n", name, sha256.Sum256(content))
	}
	return hex.EncodeToString(h.Sum(nil))[:16], nil
}

// files returns the names of the files that a recipe depends on.
func (b Builder) files(r recipe) ([]string, error) {
	var files []string
	for _, source := range r.sources {
		err := filepath.WalkDir(filepath.Join(b.Sources, source), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !r.wants(path) {
				return err
			}
			name, err := filepath.Rel(b.Sources, path)
			files = append(files, name)
			return err
		})
		if err != nil {
			return nil, err
		}
	}
	if len(files) == 0 {
		return nil, fmt.Errorf("no sources in %s", filepath.Join(b.Sources, r.sources[0]))
	}
	slices.Sort(files)
	return files, nil
}

func (r recipe) wants(path string) bool {
	extensions := []string{".go", ".mod", ".sum"}
	if r.compiler != nil {
		extensions = []string{".c", ".h", ".inc"}
	}
	return slices.Contains(extensions, filepath.Ext(path)) && !strings.HasSuffix(path, "_test.go")
}

// lock waits until no other process builds: two builders at once would compile everything twice.
func lock(ctx context.Context, name string, log io.Writer) (unlock func(), err error) {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(name, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	for tries := 0; ; tries++ {
		if err = unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err == nil {
			return func() { f.Close() }, nil
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			break
		}
		if tries%80 == 0 { // every 8 s
			fmt.Fprintln(log, "waiting for another process that builds components")
		}
		select {
		case <-ctx.Done():
			f.Close()
			return nil, context.Cause(ctx)
		case <-time.After(100 * time.Millisecond):
		}
	}
	f.Close()
	return nil, fmt.Errorf("lock %s: %w", name, err)
}

func round(d time.Duration) time.Duration {
	if d < time.Second {
		return d.Round(10 * time.Millisecond)
	}
	return d.Round(time.Second)
}
