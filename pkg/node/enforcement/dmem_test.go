package enforcement

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/gpumem/gpumem/pkg/core/gpu"
)

const region = "nvidia/0000:3b:00.0/vidmem"

// write makes a file and the folders above it.
func write(t *testing.T, content string, path ...string) string {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return file
}

// group makes the control group of a container, with the dmem controller.
func group(t *testing.T) (c Cgroups, path string) {
	t.Helper()
	c = Cgroups{Root: t.TempDir()}
	path = "/kubepods/podx/c1"
	for _, file := range []string{"dmem.max", "dmem.min"} {
		write(t, "", c.Root, path, file)
	}
	return c, path
}

func TestRegions(t *testing.T) {
	root := t.TempDir()
	c := Cgroups{Root: root}
	wantError := func(text string) {
		t.Helper()
		if _, err := c.Regions(); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("error %v, want %q", err, text)
		}
	}
	wantError("is not cgroup v2")
	write(t, "cpu memory dmem\n", root, "cgroup.controllers")
	wantError("no dmem controller")
	write(t, "", root, "dmem.capacity")
	wantError("no driver has registered")
	write(t, region+" many\n", root, "dmem.capacity")
	wantError("want a region and a number")
	write(t, region+" 85899345920\ndrm/0000:03:00.0/vram0 17163091968\n", root, "dmem.capacity")
	got, err := c.Regions()
	want := []Region{{region, 85899345920}, {"drm/0000:03:00.0/vram0", 17163091968}}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("regions %v (-want +got):\n%s", err, diff)
	}
}

func TestRegionOf(t *testing.T) {
	regions := []Region{{Name: "drm/0000:03:00.0/stolen"}, {Name: "drm/0000:03:00.0/vram0"}, {Name: "nvidia/0000:3B:00.0/vidmem"}, {Name: "nvidia/0001:3b:00.0/vidmem"}}
	for pci, want := range map[string]string{
		"00000000:3b:00.0": "nvidia/0000:3B:00.0/vidmem",
		"00000001:3b:00.0": "nvidia/0001:3b:00.0/vidmem",
		"0000:03:00.0":     "drm/0000:03:00.0/vram0",
		"00000000:04:00.0": "",
		"nonsense":         "",
		"":                 "",
	} {
		got, ok := RegionOf(gpu.Device{PCI: pci}, regions)
		if got.Name != want || ok != (want != "") {
			t.Errorf("region of %q: %q, %t; want %q", pci, got.Name, ok, want)
		}
	}
}

func TestLimit(t *testing.T) {
	regions := []Region{{Name: region, Bytes: 80 << 30}}
	t.Run("written and read back", func(t *testing.T) {
		c, path := group(t)
		if err := c.Limit(path, regions, 3072); err != nil {
			t.Fatal(err)
		}
		for _, file := range []string{"dmem.max", "dmem.min"} {
			got, err := os.ReadFile(filepath.Join(c.Root, path, file))
			if string(got) != region+" 3221225472\n" || err != nil {
				t.Errorf("%s: %q, %v", file, got, err)
			}
		}
		limits, err := c.Limits(path)
		if diff := cmp.Diff([]Region{{region, 3 << 30}}, limits); diff != "" || err != nil {
			t.Errorf("limits %v (-want +got):\n%s", err, diff)
		}
	})
	for name, tc := range map[string]struct {
		change func(t *testing.T, dir string) // the folder of the control group
		want   string
	}{
		"there is no control group": {func(t *testing.T, dir string) {
			if err := os.RemoveAll(dir); err != nil {
				t.Fatal(err)
			}
		}, "no such file"},
		"the kernel refuses":              {func(t *testing.T, dir string) { link(t, "/dev/full", dir, "dmem.max") }, "no space left"},
		"the kernel takes it and forgets": {func(t *testing.T, dir string) { link(t, "/dev/null", dir, "dmem.max") }, "reads back as []"},
		"dmem.min alone is refused":       {func(t *testing.T, dir string) { link(t, "/dev/full", dir, "dmem.min") }, "dmem.min"},
	} {
		t.Run(name, func(t *testing.T) {
			c, path := group(t)
			tc.change(t, filepath.Join(c.Root, path))
			if err := c.Limit(path, regions, 3072); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want %q", err, tc.want)
			}
		})
	}
	t.Run("what is no container's group, or no limit", func(t *testing.T) {
		c, path := group(t)
		for _, path := range []string{"", "/", "../outside", "/kubepods/../../outside"} {
			if err := c.Limit(path, regions, 3072); err == nil {
				t.Errorf("%q was written to", path)
			}
		}
		for _, limit := range []int64{0, -1, 1 << 62} {
			if err := c.Limit(path, regions, limit); err == nil {
				t.Errorf("a limit of %d MiB was written", limit)
			}
		}
	})
}

func link(t *testing.T, to string, path ...string) {
	t.Helper()
	file := filepath.Join(path...)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, file); err != nil {
		t.Fatal(err)
	}
}

func TestWithin(t *testing.T) {
	for _, tc := range []struct {
		read, written uint64
		want          bool
	}{{100 * mib, 100 * mib, true}, {99 * mib, 100 * mib, true}, {98 * mib, 100 * mib, false}, {101 * mib, 100 * mib, false}, {Unlimited, 100 * mib, false}} {
		if got := Within(tc.read, tc.written); got != tc.want {
			t.Errorf("Within(%d, %d) = %t", tc.read, tc.written, got)
		}
	}
}

// FuzzParseRegions: what is read is what is there, line by line, or an error.
func FuzzParseRegions(f *testing.F) {
	for _, s := range []string{"", "a 1\n", "a max\nb 2", "a", "a b c", "a -1\n", "\n\n a  7 \n", "a 18446744073709551616\n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		got, err := parseRegions(text)
		if err != nil {
			return
		}
		lines := 0
		for line := range strings.Lines(text) {
			if strings.TrimSpace(line) == "" {
				continue
			}
			if !strings.HasPrefix(strings.TrimSpace(line), got[lines].Name) {
				t.Errorf("line %q was read as %v", line, got[lines])
			}
			lines++
		}
		if lines != len(got) {
			t.Errorf("%d regions of %d lines", len(got), lines)
		}
	})
}
