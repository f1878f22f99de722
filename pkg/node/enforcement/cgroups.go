package enforcement

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Cgroups accesses the host's control groups, mounted at Root.
type Cgroups struct{ Root string }

// check returns an error if the driver cannot limit these control groups.
func (c Cgroups) check() error {
	_, err := os.Stat(filepath.Join(c.Root, "cgroup.controllers"))
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is not cgroup v2", c.Root)
	}
	return err
}

// dir returns the directory of a control group, which must be below the root.
func (c Cgroups) dir(group string) (string, error) {
	if rel := strings.Trim(group, "/"); rel == "" || !filepath.IsLocal(rel) {
		return "", fmt.Errorf("%q is no control group of a container", group)
	}
	return filepath.Join(c.Root, group), nil
}

// pods returns the directory in which the kubelet creates the control groups of pods. It tries the names of
// both cgroup drivers, directly below the root and one level deeper (--cgroup-root).
func (c Cgroups) pods() (string, error) {
	for _, pattern := range []string{"kubepods.slice", "kubepods", "*/*-kubepods.slice", "*/kubepods"} {
		if found, err := filepath.Glob(filepath.Join(c.Root, pattern)); err == nil && len(found) > 0 {
			return found[0], nil
		}
	}
	return "", fmt.Errorf("the kubelet's control group kubepods is not below %s", c.Root)
}

// aboveContainers reports whether the kubelet owns a control group: the group of all pods, of one quality of
// service, or of one pod.
func aboveContainers(dir string) bool {
	name := filepath.Base(dir)
	return strings.Contains(name, "kubepods") || strings.HasPrefix(name, "pod") || name == "burstable" || name == "besteffort"
}

// GroupOf returns the control group of a container, relative to the root, from the cgroupsPath in its
// specification (OCI runtime specification): a path, or for systemd "slice:prefix:name".
func GroupOf(cgroupsPath string) (string, error) {
	parts := strings.Split(cgroupsPath, ":")
	switch {
	case len(parts) == 1 && strings.Trim(cgroupsPath, "/") != "":
		return cgroupsPath, nil
	case len(parts) == 3 && strings.HasSuffix(parts[0], ".slice") && parts[2] != "":
		return expandSlice(parts[0]) + "/" + parts[1] + "-" + parts[2] + ".scope", nil
	default:
		return "", fmt.Errorf("control group %q is neither a path nor slice:prefix:name", cgroupsPath)
	}
}

// expandSlice returns the path of a systemd slice. Each dash in its name adds a level (systemd.slice(5)).
func expandSlice(slice string) string {
	name := strings.TrimSuffix(slice, ".slice")
	var path, prefix string
	for part := range strings.SplitSeq(name, "-") {
		prefix += part
		path += "/" + prefix + ".slice"
		prefix += "-"
	}
	return path
}
