package images

import (
	"archive/tar"
	"cmp"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"time"

	digest "github.com/opencontainers/go-digest"
	specs "github.com/opencontainers/image-spec/specs-go/v1"
)

// An Image describes what to write.
type Image struct {
	Name       string // with its tag: "gpumem-sample:dev"
	Files      []File
	Entrypoint []string
	Cmd        []string
	Env        []string // "NAME=value"; PATH is set when absent
	User       string   // "uid", "uid:gid" or a name of /etc/passwd
	Labels     map[string]string

	Architecture string // as Go calls it; that of this machine when empty
}

// A File is one entry of an image. Exactly one of Source, Content and Link is
// used: Link when set, else Source when set, else Content.
type File struct {
	Path    string      // where it goes, absolute
	Source  string      // a file on this machine; symbolic links are followed
	Content []byte      // or the bytes themselves
	Link    string      // or the target of a symbolic link
	Mode    fs.FileMode // permissions; 0 means 0755 for Source, 0644 for Content
}

// Programs returns the entries that put each of the named files into
// /usr/local/bin under its own name.
func Programs(sources ...string) []File {
	var files []File
	for _, source := range sources {
		files = append(files, File{Path: "/usr/local/bin/" + filepath.Base(source), Source: source})
	}
	return files
}

// Nonroot returns the files by which programs find the user "nonroot", uid and
// gid 65532.
func Nonroot() []File {
	return []File{
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/root:/sbin/nologin\nnonroot:x:65532:65532:nonroot:/home/nonroot:/sbin/nologin\n")},
		{Path: "/etc/group", Content: []byte("root:x:0:\nnonroot:x:65532:\n")},
	}
}

// WriteFile writes the image as an archive to the file name, with a layer that is not compressed.
func (image Image) WriteFile(name string) error {
	_, err := writeArchive(name, false, []Image{image})
	return err
}

func (image Image) config(layer digest.Digest) specs.Image {
	env := slices.Clone(image.Env)
	if !slices.ContainsFunc(env, func(s string) bool { return len(s) > 5 && s[:5] == "PATH=" }) {
		env = append(env, "PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin")
	}
	epoch := time.Unix(0, 0).UTC()
	return specs.Image{
		Created:  &epoch,
		Platform: specs.Platform{Architecture: cmp.Or(image.Architecture, runtime.GOARCH), OS: "linux"},
		Config: specs.ImageConfig{
			User:       image.User,
			Env:        env,
			Entrypoint: image.Entrypoint,
			Cmd:        image.Cmd,
			Labels:     image.Labels,
		},
		RootFS: specs.RootFS{Type: "layers", DiffIDs: []digest.Digest{layer}},
	}
}

func writeLayer(w io.Writer, files []File) error {
	files = slices.Clone(files)
	for i, f := range files {
		if !path.IsAbs(f.Path) {
			return fmt.Errorf("the path %q of a file is not absolute", f.Path)
		}
		files[i].Path = path.Clean(f.Path)
	}
	slices.SortFunc(files, func(a, b File) int { return cmp.Compare(a.Path, b.Path) })

	out := tar.NewWriter(w)
	folders := map[string]bool{"/": true}
	for i, f := range files {
		if i > 0 && files[i-1].Path == f.Path {
			return fmt.Errorf("two files want to be %s", f.Path)
		}
		if err := writeFolders(out, folders, path.Dir(f.Path)); err != nil {
			return err
		}
		if err := f.write(out); err != nil {
			return fmt.Errorf("file %s: %w", f.Path, err)
		}
	}
	return out.Close()
}

// writeFolders writes the folder dir and those above it, each one once.
func writeFolders(out *tar.Writer, done map[string]bool, dir string) error {
	if done[dir] {
		return nil
	}
	if err := writeFolders(out, done, path.Dir(dir)); err != nil {
		return err
	}
	done[dir] = true
	return out.WriteHeader(header(dir[1:]+"/", tar.TypeDir, 0o755, 0))
}

func (f File) write(out *tar.Writer) error {
	name := f.Path[1:]
	switch {
	case f.Link != "":
		h := header(name, tar.TypeSymlink, 0o777, 0)
		h.Linkname = f.Link
		return out.WriteHeader(h)
	case f.Source == "":
		return WriteEntry(out, name, cmp.Or(f.Mode, 0o644), f.Content)
	}
	in, err := os.Open(f.Source)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", f.Source)
	}
	if err := out.WriteHeader(header(name, tar.TypeReg, cmp.Or(f.Mode, 0o755), info.Size())); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}

// WriteEntry writes a file to a tar, without a time.
func WriteEntry(out *tar.Writer, name string, mode fs.FileMode, content []byte) error {
	if err := out.WriteHeader(header(name, tar.TypeReg, mode, int64(len(content)))); err != nil {
		return err
	}
	_, err := out.Write(content)
	return err
}

func header(name string, kind byte, mode fs.FileMode, size int64) *tar.Header {
	return &tar.Header{
		Typeflag: kind,
		Name:     name,
		Mode:     int64(mode.Perm()),
		Size:     size,
		ModTime:  time.Unix(0, 0),
		Format:   tar.FormatPAX,
	}
}
