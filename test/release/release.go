package release

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/gpumem/gpumem/test/images"
)

// A platform is what a binary is built for.
type platform struct{ os, arch string }

// compilers are those that build C for another architecture, as Debian calls them.
func compilers() map[string]string {
	return map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
}

// A Release is one that is being made.
type Release struct {
	Root    string // of the checkout
	Out     string // folder for what is made; what is in it is removed
	Version string // "v0.1.0"
	Log     io.Writer

	work string
	krew []krewPlatform
}

// Make makes all parts. What this machine cannot build is left out, and said.
func (r *Release) Make(ctx context.Context) (err error) {
	if err := os.RemoveAll(r.Out); err != nil {
		return err
	}
	if err := os.MkdirAll(r.Out, 0o755); err != nil {
		return err
	}
	if r.work, err = os.MkdirTemp("", "gpumem-release-"); err != nil {
		return err
	}
	defer os.RemoveAll(r.work)
	linux := []platform{{"linux", "amd64"}, {"linux", "arm64"}}
	for _, p := range append(linux, platform{"darwin", "amd64"}, platform{"darwin", "arm64"}) {
		if err := r.command(ctx, p); err != nil {
			return err
		}
	}
	for _, p := range linux {
		if err := r.service(ctx, "gpumem-extender", p, ""); err != nil {
			return err
		}
		compiler := ""
		if p.arch != runtime.GOARCH {
			compiler = compilers()[p.arch]
			if _, err := exec.LookPath(compiler); err != nil {
				fmt.Fprintf(r.Log, "left out: gpumem-device-plugin for %s, because there is no %s (Debian: gcc-%s)\n", p.arch, compiler, strings.TrimSuffix(compiler, "-gcc"))
				continue
			}
		} else {
			compiler = "gcc"
		}
		if err := r.service(ctx, "gpumem-device-plugin", p, compiler); err != nil {
			return err
		}
	}
	if err := r.chart(); err != nil {
		return err
	}
	if err := writeKrew(filepath.Join(r.Out, "inspect-gpumem.yaml"), r.Version, r.krew); err != nil {
		return err
	}
	if err := writeSums(r.Out); err != nil {
		return err
	}
	return r.report()
}

// build compiles a command of this repository. Without a compiler, it has no C.
func (r *Release) build(ctx context.Context, name string, p platform, compiler string) (binary string, err error) {
	binary = filepath.Join(r.work, p.os+"-"+p.arch, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.Version, "-o", binary, "./cmd/"+name)
	cmd.Dir = r.Root
	cmd.Env = append(os.Environ(), "GOOS="+p.os, "GOARCH="+p.arch, "CGO_ENABLED=0")
	if compiler != "" {
		cmd.Env = append(cmd.Env, "CGO_ENABLED=1", "CC="+compiler, "CGO_CFLAGS=-O2 -g -Wno-deprecated-declarations")
	}
	if output, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s for %s/%s: %w\n%s", name, p.os, p.arch, err, output)
	}
	return binary, nil
}

// named returns the name of a part of the release.
func (r *Release) named(name string, p platform, suffix string) string {
	return filepath.Join(r.Out, fmt.Sprintf("%s-%s-%s-%s%s", name, r.Version, p.os, p.arch, suffix))
}

// pack writes the archive of a binary, and what is in the binary.
func (r *Release) pack(name string, p platform, binary string) (archive string, err error) {
	archive = r.named(name, p, ".tar.gz")
	entries := []entry{{name, binary, 0o755}, {"LICENSE", filepath.Join(r.Root, "LICENSE"), 0o644}}
	if err := writeArchive(archive, entries); err != nil {
		return "", err
	}
	return archive, writeSBOM(r.named(name, p, ".cdx.json"), binary, r.Version)
}

// command makes the plugin of kubectl.
func (r *Release) command(ctx context.Context, p platform) error {
	const name = "kubectl-inspect-gpumem"
	binary, err := r.build(ctx, name, p, "")
	if err != nil {
		return err
	}
	archive, err := r.pack(name, p, binary)
	if err != nil {
		return err
	}
	digest, err := sum(archive)
	r.krew = append(r.krew, krewPlatform{
		Selector: selector{map[string]string{"os": p.os, "arch": p.arch}},
		URI:      homepage + "/releases/download/" + r.Version + "/" + filepath.Base(archive), Sum: digest, Bin: name,
	})
	return err
}

// service makes a part that runs in the cluster, and its image.
func (r *Release) service(ctx context.Context, name string, p platform, compiler string) error {
	binary, err := r.build(ctx, name, p, compiler)
	if err != nil {
		return err
	}
	if _, err := r.pack(name, p, binary); err != nil {
		return err
	}
	image := images.Image{
		Name: "ghcr.io/gpumem/" + name + ":" + strings.TrimPrefix(r.Version, "v"), Architecture: p.arch,
		Files: images.Programs(binary), Entrypoint: []string{"/usr/local/bin/" + name}, User: "65532:65532",
	}
	switch {
	case compiler == "":
		image.Files = append(image.Files, images.Nonroot()...)
	case p.arch != runtime.GOARCH:
		fmt.Fprintf(r.Log, "left out: the image of %s for %s, because its C library is not here; its Dockerfile has one\n", name, p.arch)
		return nil
	default:
		libraries, err := images.SharedLibraries(binary)
		if err != nil {
			return err
		}
		image.Files, image.User = append(image.Files, libraries...), "0:0"
	}
	return image.WriteFile(r.named(name, p, ".image.tar"))
}

// chart makes the chart's package.
func (r *Release) chart() error {
	entries, err := chartEntries(filepath.Join(r.Root, "charts", "gpumem"))
	if err != nil {
		return err
	}
	return writeArchive(filepath.Join(r.Out, "gpumem-"+strings.TrimPrefix(r.Version, "v")+".tgz"), entries)
}

// report says what was made, and how large it is.
func (r *Release) report() error {
	files, err := os.ReadDir(r.Out)
	if err != nil {
		return err
	}
	for _, f := range files {
		info, err := f.Info()
		if err != nil {
			return err
		}
		fmt.Fprintf(r.Log, "%8.1f MiB  %s\n", float64(info.Size())/(1<<20), f.Name())
	}
	return nil
}
