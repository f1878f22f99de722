package nvml

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	nvml "github.com/NVIDIA/go-nvml/pkg/nvml"
)

const libraryName = "libnvidia-ml.so.1"

// libraryDirs are where distributions and driver containers keep the library.
var libraryDirs = [...]string{
	"usr/lib64",
	"usr/lib/x86_64-linux-gnu",
	"usr/lib/aarch64-linux-gnu",
	"usr/lib",
	"lib64",
	"lib/x86_64-linux-gnu",
	"lib/aarch64-linux-gnu",
	"lib",
}

// FindLibrary returns the path to load NVML from: the one that is set, else the
// one of FindInDriver.
func FindLibrary(path, driverRoot string) string {
	if path != "" {
		return path
	}
	return FindInDriver(libraryName, driverRoot)
}

// FindInDriver returns the path to load a library of the driver from: the first that exists under
// the driver's root, else the bare name, which leaves the search to the dynamic linker.
func FindInDriver(name, driverRoot string) string {
	if driverRoot != "" {
		for _, dir := range libraryDirs {
			candidate := filepath.Join(driverRoot, dir, name)
			if _, err := os.Stat(candidate); err == nil {
				return candidate
			}
		}
	}
	return name
}

// Opener returns a Config.Open that looks for the library each time it is called.
func Opener(path, driverRoot string) func() (nvml.Interface, string) {
	return func() (nvml.Interface, string) {
		found := FindLibrary(path, driverRoot)
		from := found
		if found == libraryName && driverRoot != "" {
			from += fmt.Sprintf(" (which is not in %s below %s)", strings.Join(libraryDirs[:], ", "), driverRoot)
		}
		return nvml.New(nvml.WithLibraryPath(found)), from
	}
}
