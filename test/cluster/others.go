package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"

	"github.com/gpumem/gpumem/test/cluster/internal/component"
	"github.com/gpumem/gpumem/test/images"
)

// CertManager returns cert-manager's controllers as a program, which takes --kubeconfig.
func (c *Cluster) CertManager(ctx context.Context, log io.Writer) (string, error) {
	dirs, err := Config{CacheDir: c.state.CacheDir, Log: log}.build(ctx, component.CertManager)
	return dirs.Program(component.CertManager, "certmanager"), err
}

// CertManagerCRDs returns the folder with cert-manager's CustomResourceDefinitions.
func CertManagerCRDs(ctx context.Context) (string, error) {
	m, err := download(ctx, component.CertManager, "github.com/cert-manager/cert-manager")
	return filepath.Join(m.Dir, "deploy", "crds"), err
}

// Kueue is what it takes to install Kueue in a cluster.
type Kueue struct {
	Chart      string // folder of its Helm chart
	Archive    string // file with its image, for LoadImage
	Repository string // the image's name
	Tag        string
}

// Kueue builds Kueue's controllers, when they are missing, and an image of them.
// The chart is that of the same module.
func (c *Cluster) Kueue(ctx context.Context, log io.Writer) (Kueue, error) {
	dirs, err := Config{CacheDir: c.state.CacheDir, Log: log}.build(ctx, component.Kueue)
	if err != nil {
		return Kueue{}, err
	}
	m, err := download(ctx, component.Kueue, "sigs.k8s.io/kueue")
	if err != nil {
		return Kueue{}, err
	}
	k := Kueue{Chart: filepath.Join(m.Dir, "charts", "kueue"), Repository: "registry.k8s.io/kueue/kueue", Tag: m.Version}
	k.Archive, err = c.imageFile("kueue.tar", images.Image{
		Name:       k.Repository + ":" + k.Tag,
		Files:      []images.File{{Path: "/manager", Source: dirs.Program(component.Kueue, "kueue")}},
		Entrypoint: []string{"/manager"},
		User:       "65532:65532",
	})
	return k, err
}

// module is what go says of a module that it has downloaded.
type module struct{ Dir, Version string }

// download returns where the sources of a module are that a component is made of.
func download(ctx context.Context, component, path string) (m module, err error) {
	sources, err := sources()
	if err != nil {
		return m, err
	}
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path)
	cmd.Dir = filepath.Join(sources, "cluster", "components", component)
	output, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(output, &m)
	}
	if err != nil {
		return m, fmt.Errorf("download %s: %w", path, err)
	}
	return m, nil
}
