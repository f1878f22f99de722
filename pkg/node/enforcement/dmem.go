package enforcement

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

// Region is a device's memory as the dmem controller knows it: a line of
// dmem.capacity.
type Region struct {
	Name  string // for example "nvidia/0000:3b:00.0/vidmem"
	Bytes uint64
}

// namers find the bus address in the name of a region, one for each driver.
var namers = [...]func(region string) (pci string, ok bool){
	namer("nvidia/", "/vidmem"), // NVIDIA
	namer("drm/", "/vram0"),     // amdgpu and xe, for kernel.org's drivers
}

func namer(prefix, suffix string) func(string) (string, bool) {
	return func(region string) (string, bool) {
		rest, ok := strings.CutPrefix(region, prefix)
		if !ok {
			return "", false
		}
		return strings.CutSuffix(rest, suffix)
	}
}

// RegionOf returns the region that is a GPU's memory.
func RegionOf(d gpu.Device, regions []Region) (Region, bool) {
	want := busAddress(d.PCI)
	if want == "" {
		return Region{}, false
	}
	for _, r := range regions {
		for _, name := range namers {
			if pci, ok := name(r.Name); ok && busAddress(pci) == want {
				return r, true
			}
		}
	}
	return Region{}, false
}

// busAddress writes a PCI address in one form: NVML gives the domain eight
// digits, the kernel four.
func busAddress(pci string) string {
	domain, rest, ok := strings.Cut(strings.ToLower(pci), ":")
	if !ok {
		return ""
	}
	return cmp.Or(strings.TrimLeft(domain, "0"), "0") + ":" + rest
}

// Cgroups are the control groups of a host, mounted at Root.
type Cgroups struct{ Root string }

// Regions returns what the dmem controller of cgroup v2 lists, or why there is
// none.
func (c Cgroups) Regions() ([]Region, error) {
	if _, err := os.Stat(filepath.Join(c.Root, "cgroup.controllers")); err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("%s is not cgroup v2", c.Root)
		}
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(c.Root, "dmem.capacity"))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, errors.New("the kernel has no dmem controller (Linux 6.14 or newer has)")
	case err != nil:
		return nil, err
	}
	regions, err := parseRegions(string(text))
	if err != nil {
		return nil, fmt.Errorf("dmem.capacity: %w", err)
	}
	if len(regions) == 0 {
		return nil, errors.New("dmem.capacity is empty: no driver has registered its memory")
	}
	return regions, nil
}

// parseRegions reads a nested-keyed file of the dmem controller: a region and a
// number of bytes, or "max", on each line.
func parseRegions(text string) ([]Region, error) {
	var out []Region
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		if len(fields) != 2 {
			return nil, fmt.Errorf("line %q: want a region and a number", strings.TrimSpace(line))
		}
		bytes := uint64(Unlimited)
		if fields[1] != "max" {
			var err error
			if bytes, err = strconv.ParseUint(fields[1], 10, 64); err != nil {
				return nil, fmt.Errorf("line %q: want a region and a number", strings.TrimSpace(line))
			}
		}
		out = append(out, Region{Name: fields[0], Bytes: bytes})
	}
	return out, nil
}

// Unlimited is a limit that limits nothing: "max" in the file.
const Unlimited = 1<<64 - 1

const mib = 1 << 20

// Limit writes how much of each region the processes of a control group may
// have: dmem.max, beyond which an allocation fails, and dmem.min, which is kept
// for them. It is done once both read back as they were written; the kernel
// counts in pages and may round down by one.
func (c Cgroups) Limit(group string, regions []Region, limitMiB int64) error {
	if limitMiB <= 0 || limitMiB > Unlimited/2/mib {
		return fmt.Errorf("a limit of %d MiB", limitMiB)
	}
	dir, err := c.dir(group)
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range regions {
		for _, file := range []string{"dmem.max", "dmem.min"} {
			errs = append(errs, limit(filepath.Join(dir, file), r.Name, uint64(limitMiB)*mib))
		}
	}
	return errors.Join(errs...)
}

// Limits returns the most that the processes of a control group may have of each
// region.
func (c Cgroups) Limits(group string) ([]Region, error) {
	dir, err := c.dir(group)
	if err != nil {
		return nil, err
	}
	return readRegions(filepath.Join(dir, "dmem.max"))
}

// dir returns the folder of a control group, which must be below the root and
// not the root itself.
func (c Cgroups) dir(group string) (string, error) {
	if rel := strings.Trim(group, "/"); rel == "" || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%q is no control group of a container", group)
	}
	return filepath.Join(c.Root, group), nil
}

func limit(path, region string, bytes uint64) error {
	// The file exists in every control group of the controller: making it would
	// only hide that it does not.
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(f, "%s %d\n", region, bytes)
	if err := errors.Join(err, f.Close()); err != nil {
		return err
	}
	regions, err := readRegions(path)
	if err != nil {
		return err
	}
	for _, r := range regions {
		if r.Name == region && Within(r.Bytes, bytes) {
			return nil
		}
	}
	return fmt.Errorf("%s: %s was set to %d and reads back as %v", path, region, bytes, regions)
}

// maxPage is the largest page that drivers count memory in: NVIDIA's have 2 MiB.
const maxPage = 2 * mib

// Within reports whether a limit that was read is the one that was written, in
// whole pages.
func Within(read, written uint64) bool { return read <= written && written-read < maxPage }

func readRegions(path string) ([]Region, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	regions, err := parseRegions(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return regions, nil
}
