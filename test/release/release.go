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

// A service is a part that runs in the cluster, from an image.
type service struct {
	name   string
	module string   // its folder in the checkout
	source string   // its package
	suffix string   // of the version, where there are several
	flags  []string // of Go, by which these differ
	c      bool     // it is linked with the C library
	packed bool     // its program is of use by itself
}

func services() []service {
	return []service{
		{name: "gpumem-extender", source: "./cmd/gpumem-extender", packed: true},
		scheduler("1.36"),
		scheduler("1.35", "-modfile=kube-1.35.mod", "-tags=kube1.35"),
		scheduler("1.37", "-modfile=kube-1.37.mod", "-tags=kube1.37"),
		{name: "gpumem-device-plugin", source: "./cmd/gpumem-device-plugin", c: true, packed: true},
		// What "helm test" and config/samples run.
		{name: "gpumem-sample", module: "test", source: "./images/sample"},
	}
}

// scheduler is gpumem-scheduler for one minor version of Kubernetes.
func scheduler(kube string, flags ...string) service {
	return service{
		name: "gpumem-scheduler", suffix: "-kube" + kube, module: "cmd/gpumem-scheduler",
		source: "github.com/gpumem/gpumem/cmd/gpumem-scheduler", flags: flags, packed: true,
	}
}

// A Release is one that is being made.
type Release struct {
	Root    string // of the checkout
	Out     string // folder for what is made; what is in it is removed
	Version string // "v0.2.0"
	All     bool   // fail where this machine cannot build a part; else it is left out, and said
	Log     io.Writer

	work   string
	krew   []krewPlatform
	images []string // by name, tag and digest
}

// everywhere are the platforms of a release.
func everywhere() []platform {
	return []platform{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "amd64"}, {"darwin", "arm64"}}
}

// Make makes all parts.
func (r *Release) Make(ctx context.Context) error { return r.make(ctx, services(), everywhere()) }

// make makes the parts, with some services, for some platforms.
func (r *Release) make(ctx context.Context, services []service, platforms []platform) (err error) {
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
	for _, p := range platforms {
		if err := r.command(ctx, p); err != nil {
			return err
		}
	}
	for _, s := range services {
		if err := r.service(ctx, s, platforms); err != nil {
			return err
		}
	}
	notes, err := r.notes()
	if err != nil {
		return err
	}
	if err := errors.Join(
		r.chart(),
		writeKrew(filepath.Join(r.Out, "inspect-gpumem.yaml"), r.Version, r.krew),
		os.WriteFile(filepath.Join(r.Out, "images.txt"), []byte(strings.Join(r.images, "\n")+"\n"), 0o644),
		os.WriteFile(filepath.Join(r.Out, "notes.md"), notes, 0o644),
	); err != nil {
		return err
	}
	if err := writeSums(r.Out); err != nil {
		return err
	}
	return r.report()
}

// compile compiles a package of a module.
func (r *Release) compile(ctx context.Context, module, source string, p platform, compiler string, flags ...string) (binary string, err error) {
	name := filepath.Base(source)
	binary = filepath.Join(r.work, p.os+"-"+p.arch, name)
	args := append([]string{"build", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w -X main.version=" + r.Version, "-o", binary}, flags...)
	cmd := exec.CommandContext(ctx, "go", append(args, source)...)
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

// named returns the file of a part of the release, by the part's name and version.
func (r *Release) named(part string, p platform, suffix string) string {
	return filepath.Join(r.Out, part+"-"+p.os+"-"+p.arch+suffix)
}

// pack writes the archive of a binary, with the licences of what it was linked from.
func (r *Release) pack(part string, p platform, binary, licences string) (archive string, err error) {
	archive = r.named(part, p, ".tar.gz")
	return archive, writeArchive(archive, []entry{
		{name: filepath.Base(binary), source: binary, mode: 0o755},
		{name: "LICENSE", source: filepath.Join(r.Root, "LICENSE"), mode: 0o644},
		{name: licencesFile, source: licences, mode: 0o644},
	})
}

// command makes the plugin of kubectl.
func (r *Release) command(ctx context.Context, p platform) error {
	const name = "kubectl-inspect-gpumem"
	binary, err := r.compile(ctx, r.Root, "./cmd/"+name, p, "")
	if err != nil {
		return err
	}
	licences, err := r.licences(ctx, r.Root, binary)
	if err != nil {
		return err
	}
	part := name + "-" + r.Version
	archive, err := r.pack(part, p, binary, licences)
	if err != nil {
		return err
	}
	if err := writeSBOM(r.named(part, p, ".cdx.json"), binary, r.Version, nil); err != nil {
		return err
	}
	digest, err := sum(archive)
	r.krew = append(r.krew, krewPlatform{
		Selector: selector{map[string]string{"os": p.os, "arch": p.arch}},
		URI:      homepage + "/releases/download/" + r.Version + "/" + filepath.Base(archive), Sum: digest, Bin: name,
	})
	return err
}

// service makes the image of a service, for each architecture that this machine can build
// for, and packs its programs.
func (r *Release) service(ctx context.Context, s service, platforms []platform) error {
	var made []images.Image
	for _, p := range platforms {
		if p.os != "linux" {
			continue
		}
		compiler, err := compilerFor(s, p)
		if err != nil {
			if r.All {
				return err
			}
			fmt.Fprintf(r.Log, "left out: %v\n", err)
			continue
		}
		image, err := r.image(ctx, s, p, compiler)
		if err != nil {
			return fmt.Errorf("image of %s%s for %s: %w", s.name, s.suffix, p.arch, err)
		}
		made = append(made, image)
	}
	file := filepath.Join(r.Out, s.name+"-"+r.Version+s.suffix+".oci.tar")
	digest, err := images.WriteArchive(file, made...)
	if err != nil {
		return err
	}
	r.images = append(r.images, made[0].Name+"@"+digest.String())
	return nil
}

// compilerFor returns the C compiler that a service needs for a platform, if it needs one.
func compilerFor(s service, p platform) (string, error) {
	if !s.c {
		return "", nil
	}
	if p.arch == runtime.GOARCH {
		return "gcc", nil
	}
	triplet := triplets()[p.arch]
	compiler := triplet + "-gcc"
	if _, err := exec.LookPath(compiler); err != nil {
		return "", fmt.Errorf("%s for %s, because there is no %s (Debian: gcc-%s and libc6-dev-%s-cross)",
			s.name, p.arch, compiler, strings.ReplaceAll(triplet, "_", "-"), p.arch)
	}
	return compiler, nil
}

// image builds a service for a platform and describes its image.
func (r *Release) image(ctx context.Context, s service, p platform, compiler string) (images.Image, error) {
	module := filepath.Join(r.Root, s.module)
	binary, err := r.compile(ctx, module, s.source, p, compiler, s.flags...)
	if err != nil {
		return images.Image{}, err
	}
	licences, err := r.licences(ctx, module, binary, s.flags...)
	if err != nil {
		return images.Image{}, err
	}
	image := images.Image{
		Name: "ghcr.io/gpumem/" + s.name + ":" + strings.TrimPrefix(r.Version, "v") + s.suffix, Architecture: p.arch,
		Files:      append(images.Programs(binary), images.File{Path: "/" + licencesFile, Source: licences, Mode: 0o644}),
		Entrypoint: []string{"/usr/local/bin/" + filepath.Base(binary)}, User: "65532:65532",
	}
	var libraries []images.File
	if s.c {
		if libraries, err = librariesOf(binary, p); err != nil {
			return images.Image{}, err
		}
		image.Files, image.User = append(image.Files, libraries...), "0:0"
	} else {
		image.Files = append(image.Files, images.Nonroot()...)
	}
	part := s.name + "-" + r.Version + s.suffix
	if err := writeSBOM(r.named(part, p, ".cdx.json"), binary, r.Version, libraries); err != nil {
		return images.Image{}, err
	}
	if s.packed {
		_, err = r.pack(part, p, binary, licences)
	}
	return image, err
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

// notes returns what the changelog says of the version, or of what is not released yet.
func (r *Release) notes() ([]byte, error) {
	text, err := os.ReadFile(filepath.Join(r.Root, "CHANGELOG.md"))
	if err != nil {
		return nil, err
	}
	for _, heading := range []string{strings.TrimPrefix(r.Version, "v"), "Unreleased"} {
		_, section, found := strings.Cut(string(text), "\n## ["+heading+"]")
		if !found {
			continue
		}
		_, section, _ = strings.Cut(section, "\n") // what else the heading says
		section, _, _ = strings.Cut(section, "\n## ")
		if section = strings.TrimSpace(section); section != "" {
			return []byte(section + "\n"), nil
		}
	}
	return nil, fmt.Errorf("CHANGELOG.md says nothing of %s, and has nothing under Unreleased", r.Version)
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
