package images

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"debug/elf"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// Who loads an image need not be who made it.
func TestEverybodyMayReadTheFile(t *testing.T) {
	name := filepath.Join(t.TempDir(), "some.image.tar")
	if err := (Image{Name: "hello:dev"}).WriteFile(name); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(name)
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("mode %v, %v, want 0644", info.Mode(), err)
	}
}

func TestWrite(t *testing.T) {
	program := filepath.Join(t.TempDir(), "hello")
	if err := os.WriteFile(program, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	image := Image{
		Name: "hello:dev",
		Files: append(Programs(program),
			File{Path: "/bin/hello", Link: "/usr/local/bin/hello"},
			File{Path: "/etc/motd", Content: []byte("hi\n"), Mode: 0o600}),
		Entrypoint: []string{"hello"},
		User:       "65532",
	}
	a := written(t, image.WriteFile)
	var begin, index specs.Index
	var manifest specs.Manifest
	var config specs.Image
	if err := json.Unmarshal([]byte(a["index.json"]), &begin); err != nil || begin.Manifests[0].Annotations[nameOfImage] != "hello:dev" {
		t.Errorf("the image is named %v, %v", begin.Manifests, err)
	}
	a.blob(t, begin.Manifests[0], &index)
	a.blob(t, index.Manifests[0], &manifest)
	a.blob(t, manifest.Config, &config)
	wantConfig := specs.ImageConfig{
		User:       "65532",
		Entrypoint: []string{"hello"},
		Env:        []string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"},
	}
	if diff := cmp.Diff(wantConfig, config.Config); diff != "" {
		t.Errorf("config (-want +got):\n%s", diff)
	}
	wantFiles := map[string]string{
		"bin/": "drwxr-xr-x", "etc/": "drwxr-xr-x", "usr/": "drwxr-xr-x", "usr/local/": "drwxr-xr-x", "usr/local/bin/": "drwxr-xr-x",
		"bin/hello":           "Lrwxrwxrwx -> /usr/local/bin/hello",
		"etc/motd":            "-rw------- hi\n",
		"usr/local/bin/hello": "-rwxr-xr-x binary",
	}
	layer := a.blob(t, manifest.Layers[0], nil)
	if diff := cmp.Diff(wantFiles, untar(t, []byte(layer))); diff != "" || config.RootFS.DiffIDs[0] != digest.FromString(layer) {
		t.Errorf("layer (-want +got):\n%s", diff)
	}
}

func TestWriteRefuses(t *testing.T) {
	tests := map[string]struct {
		image Image
		want  string
	}{
		"no name":       {Image{}, "without a name"},
		"relative path": {Image{Name: "a:b", Files: []File{{Path: "etc/motd"}}}, "not absolute"},
		"twice":         {Image{Name: "a:b", Files: []File{{Path: "/a"}, {Path: "/b/../a"}}}, "two files want to be /a"},
		"no source":     {Image{Name: "a:b", Files: []File{{Path: "/a", Source: "/does/not/exist"}}}, "no such file"},
		"folder":        {Image{Name: "a:b", Files: []File{{Path: "/a", Source: "/"}}}, "not a regular file"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			err := test.image.WriteFile(filepath.Join(dir, "x.tar"))
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("WriteFile() = %v, want an error with %q", err, test.want)
			}
			if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
		})
	}
}

func TestParseLdd(t *testing.T) {
	got, err := parseLdd([]byte("\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3e)\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f3f)\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if _, err := parseLdd([]byte("\tlibmissing.so.1 => not found\n")); err == nil {
		t.Error("a missing library is not an error")
	}
}

// archive is what one holds, by the names of its files.
type archive map[string]string

// written returns what is written to a file, which is the same each time.
func written(t *testing.T, write func(file string) error) archive {
	t.Helper()
	var made [2][]byte
	for i := range made {
		file := filepath.Join(t.TempDir(), "hello.tar")
		err := write(file)
		if err == nil {
			made[i], err = os.ReadFile(file)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(made[0], made[1]) {
		t.Error("two archives of one image differ")
	}
	return untar(t, made[0])
}

// blob returns one, which is what its digest says.
func (a archive) blob(t *testing.T, d specs.Descriptor, into any) string {
	t.Helper()
	text, found := a["blobs/sha256/"+d.Digest.Encoded()]
	if !found || digest.FromString(text) != d.Digest || int64(len(text)) != d.Size {
		t.Fatalf("%s %s: in the archive %t, of %d bytes", d.MediaType, d.Digest, found, len(text))
	}
	if into != nil {
		if err := json.Unmarshal([]byte(text), into); err != nil {
			t.Fatal(err)
		}
	}
	return text
}

// untar returns what an archive holds: files at the top level by content, and
// within a layer, links, folders and files by mode and content.
func untar(t *testing.T, archive []byte) map[string]string {
	t.Helper()
	entries := make(map[string]string)
	in := tar.NewReader(bytes.NewReader(archive))
	for {
		h, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		mode := h.FileInfo().Mode().String()
		switch {
		case h.Typeflag == tar.TypeSymlink:
			entries[h.Name] = mode + " -> " + h.Linkname
		case h.Typeflag == tar.TypeDir:
			entries[h.Name] = mode
		case strings.HasSuffix(h.Name, ".json") || strings.HasPrefix(h.Name, "blobs/") || h.Name == "oci-layout":
			entries[h.Name] = string(content)
		default:
			entries[h.Name] = mode + " " + string(content)
		}
	}
	return entries
}

// A program of another architecture brings that one's loader and C library.
func TestForeignLibraries(t *testing.T) {
	const triplet = "aarch64-linux-gnu"
	if _, err := exec.LookPath(triplet + "-gcc"); err != nil || runtime.GOARCH == "arm64" {
		t.Skipf("no compiler for another architecture: %v", err)
	}
	program := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command(triplet+"-gcc", "-x", "c", "-o", program, "-")
	cmd.Stdin = strings.NewReader("int puts(const char *s); int main(void) { return puts(\"hello\") < 0; }")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	files, err := ForeignLibraries(program, triplet)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range files {
		got = append(got, f.Path)
		if machine := machineOf(t, f.Source); machine != elf.EM_AARCH64 {
			t.Errorf("%s is of %s", f.Source, machine)
		}
	}
	want := []string{"/lib/ld-linux-aarch64.so.1", "/lib/aarch64-linux-gnu/libc.so.6"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if _, err := ForeignLibraries("/etc/hostname", triplet); err == nil {
		t.Error("a file that is no program was read")
	}
}

func machineOf(t *testing.T, name string) elf.Machine {
	t.Helper()
	f, err := elf.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	return f.Machine
}

// The archive of a release has an image for each architecture, and each blob is what its
// digest says.
func TestWriteArchive(t *testing.T) {
	of := func(arch string) Image {
		return Image{Name: "example.com/hello:1.2.3", Architecture: arch, Files: []File{{Path: "/etc/arch", Content: []byte(arch)}}, Entrypoint: []string{"hello"}}
	}
	var named digest.Digest
	files := written(t, func(file string) (err error) {
		named, err = WriteArchive(file, of("amd64"), of("arm64"))
		return err
	})
	var begin, index specs.Index
	if err := json.Unmarshal([]byte(files["index.json"]), &begin); err != nil || len(begin.Manifests) != 1 {
		t.Fatalf("%v, %+v", err, begin)
	}
	want := map[string]string{"io.containerd.image.name": "example.com/hello:1.2.3", "org.opencontainers.image.ref.name": "1.2.3"}
	if diff := cmp.Diff(want, begin.Manifests[0].Annotations); diff != "" || begin.Manifests[0].Digest != named || files["oci-layout"] != `{"imageLayoutVersion":"1.0.0"}` {
		t.Errorf("it begins with %s, %s (-want +got):\n%s", begin.Manifests[0].Digest, files["oci-layout"], diff)
	}
	files.blob(t, begin.Manifests[0], &index)
	for i, arch := range []string{"amd64", "arm64"} {
		var manifest specs.Manifest
		var config specs.Image
		files.blob(t, index.Manifests[i], &manifest)
		files.blob(t, manifest.Config, &config)
		plain, err := gzip.NewReader(strings.NewReader(files.blob(t, manifest.Layers[0], nil)))
		if err != nil {
			t.Fatal(err)
		}
		layer, err := io.ReadAll(plain)
		if err != nil {
			t.Fatal(err)
		}
		if config.Architecture != arch || index.Manifests[i].Platform.Architecture != arch || config.RootFS.DiffIDs[0] != digest.FromBytes(layer) || untar(t, layer)["etc/arch"] != "-rw-r--r-- "+arch {
			t.Errorf("%s: %+v, files %v", arch, config, untar(t, layer))
		}
	}
	other := of("arm64")
	other.Name = "example.com/other:1.2.3"
	if _, err := WriteArchive(filepath.Join(t.TempDir(), "x.tar"), of("amd64"), other); err == nil {
		t.Error("two images of different names are one")
	}
}
