package release

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/gpumem/gpumem/test/images"
)

// A platform is what a binary is built for.
type platform struct{ os, arch string }

// triplets name architectures as Debian does in its compilers' names and in the folders
// of libraries.
func triplets() map[string]string {
	return map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}
}

// A Release is one that is being made.
type Release struct {
	Root    string // of the checkout
	Out     string // folder for what is made; what is in it is removed
	Version string // "v0.2.0"
	Log     io.Writer

	work string
	krew []krewPlatform
}

// Make makes all parts. What this machine cannot build is left out, and said.
func (r *Release) Make(ctx context.Context) (err error) {
	if err := r.checkChart(); err != nil {
		return err
	}
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
		if err := errors.Join(r.service(ctx, "gpumem-extender", p, ""), r.sample(ctx, p)); err != nil {
			return err
		}
		compiler := "gcc"
		if p.arch != runtime.GOARCH {
			triplet := triplets()[p.arch]
			compiler = triplet + "-gcc"
			if _, err := exec.LookPath(compiler); err != nil {
				fmt.Fprintf(r.Log, "left out: gpumem-device-plugin for %s, because there is no %s (Debian: gcc-%s and libc6-dev-%s-cross)\n",
					p.arch, compiler, strings.ReplaceAll(triplet, "_", "-"), p.arch)
				continue
			}
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
	return r.compile(ctx, r.Root, "./cmd/"+name, p, compiler)
}

// compile compiles a package of a module.
func (r *Release) compile(ctx context.Context, module, source string, p platform, compiler string) (binary string, err error) {
	name := filepath.Base(source)
	binary = filepath.Join(r.work, p.os+"-"+p.arch, name)
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version="+r.Version, "-o", binary, source)
	cmd.Dir = module
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
	image := r.image(name, p, binary)
	switch {
	case compiler == "":
		image.Files = append(image.Files, images.Nonroot()...)
	default:
		libraries, err := librariesOf(binary, p)
		if err != nil {
			return fmt.Errorf("image of %s for %s: %w", name, p.arch, err)
		}
		image.Files, image.User = append(image.Files, libraries...), "0:0"
	}
	return image.WriteFile(r.named(name, p, ".image.tar"))
}

// image describes the image of a program that needs nothing but itself.
func (r *Release) image(name string, p platform, binary string) images.Image {
	return images.Image{
		Name: "ghcr.io/gpumem/" + name + ":" + strings.TrimPrefix(r.Version, "v"), Architecture: p.arch,
		Files: images.Programs(binary), Entrypoint: []string{"/usr/local/bin/" + filepath.Base(binary)}, User: "65532:65532",
	}
}

// sample makes the image that "helm test" and config/samples run. Its program is
// of no use without them, and is not packed.
func (r *Release) sample(ctx context.Context, p platform) error {
	binary, err := r.compile(ctx, filepath.Join(r.Root, "test"), "./images/sample", p, "")
	if err != nil {
		return err
	}
	const name = "gpumem-sample"
	return r.image(name, p, binary).WriteFile(r.named(name, p, ".image.tar"))
}

// librariesOf returns what a program is linked to.
func librariesOf(binary string, p platform) ([]images.File, error) {
	if p.arch != runtime.GOARCH {
		return images.ForeignLibraries(binary, triplets()[p.arch])
	}
	return images.SharedLibraries(binary)
}

// checkChart says whether the chart is of another version than the release: it would
// ask for images that are not made.
func (r *Release) checkChart() error {
	text, err := os.ReadFile(filepath.Join(r.Root, "charts", "gpumem", "Chart.yaml"))
	if err != nil {
		return err
	}
	var chart struct{ Version, AppVersion string }
	if err := yaml.Unmarshal(text, &chart); err != nil {
		return fmt.Errorf("read Chart.yaml: %w", err)
	}
	if want := strings.TrimPrefix(r.Version, "v"); chart.Version != want || chart.AppVersion != want {
		return fmt.Errorf("the release is %s, and charts/gpumem/Chart.yaml has version %s and appVersion %s: change these first", r.Version, chart.Version, chart.AppVersion)
	}
	return nil
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
