package fakenvml

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
)

// The file names that NVIDIA's programs, go-nvml and programs that use CUDA load. Here they
// are one library.
const (
	LibraryName     = "libnvidia-ml.so.1"
	CUDALibraryName = "libcuda.so.1"
)

// ConfigEnv names the environment variable that holds the path of the configuration file.
// Without it the library reads etc/fakenvml.json of the driver root that it lies in.
const ConfigEnv = "FAKENVML_CONFIG"

//go:embed src/*.c src/*.h src/*.inc
var sources embed.FS

// Build compiles the library with gcc into dir, where it then has both names, and returns its
// path.
func Build(ctx context.Context, dir string) (string, error) {
	library := filepath.Join(dir, LibraryName)
	err := compile(ctx, library,
		"-shared", "-fPIC", "-O2", "-fvisibility=hidden", "-Wl,-soname,"+LibraryName)
	if err != nil {
		return "", err
	}
	if err := os.Symlink(LibraryName, filepath.Join(dir, CUDALibraryName)); !errors.Is(err, fs.ErrExist) {
		return library, err
	}
	return library, nil
}

// compile compiles all C sources with these arguments of gcc into output, in one step:
// a process that has the old file loaded keeps it.
func compile(ctx context.Context, output string, args ...string) error {
	src, err := os.MkdirTemp("", "fakenvml-*")
	if err != nil {
		return err
	}
	defer os.RemoveAll(src)
	if err := os.CopyFS(src, sources); err != nil {
		return err
	}
	files, err := fs.Glob(sources, "src/*.c")
	if err != nil {
		return err
	}
	temporary := output + ".tmp"
	args = append(args, "-Wall", "-Wextra", "-Werror", "-o", temporary)
	for _, f := range files {
		args = append(args, filepath.Join(src, f))
	}
	args = append(args, "-lpthread")
	cmd := exec.CommandContext(ctx, "gcc", args...)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("gcc: %w\n%s", err, out)
	}
	return os.Rename(temporary, output)
}
