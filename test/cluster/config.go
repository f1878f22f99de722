package cluster

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// Config describes a cluster.
type Config struct {
	// Name tells clusters of one machine apart.
	Name string
	// Nodes may be empty.
	Nodes []Node
	// CacheDir keeps what is built once and used by all clusters. Empty means
	// DefaultCacheDir.
	CacheDir string
	// StateDir is the cluster's own folder, made by Start and removed by Stop.
	// Empty means clusters/NAME in the cache.
	StateDir string
	// Port is where the API server is reached on the machine's loopback. Zero
	// means any free one.
	Port int
	// NoScheduler leaves the default scheduler out.
	NoScheduler bool
	// SchedulerConfig is a KubeSchedulerConfiguration for the default
	// scheduler; its clientConnection is filled in. Empty means the defaults.
	SchedulerConfig []byte
	// AuditPolicy is the API server's, in YAML: what of it is written to the file
	// that AuditLog names. Empty means that nothing is.
	AuditPolicy []byte
	// Forwarder, when set, is the command of a process that calls Forward, so
	// that the cluster outlives the process that starts it. It is started with
	// the cluster's state folder as one more argument. Otherwise this process
	// forwards, until Stop.
	Forwarder []string
	// Log gets the progress of builds and of the start; nil means nowhere.
	Log io.Writer
}

// Node describes one node.
type Node struct {
	Name   string            `json:"name"`
	Labels map[string]string `json:"labels,omitempty"`
	Taints []corev1.Taint    `json:"taints,omitempty"`
	// GPUs is the description that the simulated driver reads. A node with nil
	// has no driver.
	GPUs []byte `json:"gpus,omitempty"`
	// Kubelet is a part of a KubeletConfiguration, in YAML, that is laid over
	// the cluster's own.
	Kubelet []byte `json:"kubelet,omitempty"`
}

// DefaultCacheDir returns the folder for what is built: that of the variable
// GPUMEM_CACHE, or gpumem in the user's cache folder.
func DefaultCacheDir() (string, error) {
	if dir := os.Getenv("GPUMEM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no folder for the build cache, set GPUMEM_CACHE: %w", err)
	}
	return filepath.Join(dir, "gpumem"), nil
}

// DefaultStateDir returns the folder of the cluster called name.
func DefaultStateDir(name string) (string, error) {
	cache, err := DefaultCacheDir()
	return filepath.Join(cache, "clusters", name), err
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$`)

// complete returns the configuration with its defaults, or what is wrong
// with it.
func (c Config) complete() (Config, error) {
	if !dnsLabel.MatchString(c.Name) {
		return c, fmt.Errorf("the name %q of the cluster is not a DNS label of at most 32 characters", c.Name)
	}
	seen := make(map[string]bool)
	for _, n := range c.Nodes {
		if err := n.validate(); err != nil {
			return c, err
		}
		if seen[n.Name] {
			return c, fmt.Errorf("two nodes are called %s", n.Name)
		}
		seen[n.Name] = true
	}
	cache, err := DefaultCacheDir()
	if c.CacheDir == "" && err != nil {
		return c, err
	}
	c.CacheDir = cmp.Or(c.CacheDir, cache)
	c.StateDir = cmp.Or(c.StateDir, filepath.Join(c.CacheDir, "clusters", c.Name))
	for _, dir := range []*string{&c.CacheDir, &c.StateDir} {
		if *dir, err = filepath.Abs(*dir); err != nil {
			return c, err
		}
		// A node sees folders of its own in these places.
		for _, hidden := range []string{"/run", "/var/run", "/var/lib", "/var/log"} {
			if *dir == hidden || strings.HasPrefix(*dir, hidden+"/") {
				return c, fmt.Errorf("the folder %s cannot be used, because nodes have a %s of their own", *dir, hidden)
			}
		}
	}
	if c.Log == nil {
		c.Log = io.Discard
	}
	return c, nil
}

func (n Node) validate() error {
	if !dnsLabel.MatchString(n.Name) || n.Name == fabric {
		return fmt.Errorf("the name %q of a node is %q or not a DNS label of at most 32 characters", n.Name, fabric)
	}
	return nil
}

// sources returns the folder of this repository's tests, from which
// components are built.
func sources() (string, error) {
	_, file, _, ok := runtime.Caller(0)
	dir := filepath.Dir(filepath.Dir(file))
	if !ok || !filepath.IsAbs(file) {
		return "", errors.New("this program does not know where its sources are: build it without -trimpath")
	}
	if _, err := os.Stat(filepath.Join(dir, "cluster", "components")); err != nil {
		return "", fmt.Errorf("the sources that this program was built from are needed: %w", err)
	}
	return dir, nil
}
