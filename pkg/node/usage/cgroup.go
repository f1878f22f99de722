package usage

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Owner is the container of a process.
type Owner struct {
	Pod       string // UID; empty if the process belongs to no pod
	Container string // ID; empty if the process belongs to the pod but to no container
}

// ErrGone reports that the process does not exist.
var ErrGone = errors.New("the process is gone")

// Proc reads a proc file system at Root.
type Proc struct{ Root string }

// Owner returns the container of the process with the host's process ID `pid`, or ErrGone if there is no such
// process.
func (p Proc) Owner(pid int) (Owner, error) {
	text, err := os.ReadFile(filepath.Join(p.Root, strconv.Itoa(pid), "cgroup"))
	if errors.Is(err, fs.ErrNotExist) {
		return Owner{}, ErrGone
	}
	if err != nil {
		return Owner{}, fmt.Errorf("find the container of process %d: %w", pid, err)
	}
	return parseCgroups(string(text)), nil
}

// parseCgroups reads /proc/PID/cgroup (cgroups(7)), which has a line "ID:controllers:path" for each hierarchy.
// It returns the first owner with a container, because no two hierarchies name different containers of a
// process.
func parseCgroups(text string) Owner {
	var pod Owner
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 {
			continue
		}
		owner := parsePath(parts[2])
		if owner.Container != "" {
			return owner
		}
		if pod.Pod == "" {
			pod = owner
		}
	}
	return pod
}

// parsePath parses the path of a control group. The path contains the pod's element, then the container's
// element, and then the elements of groups that the container has created.
//
//	cgroupfs  /kubepods/burstable/pod<UID>/<ID>
//	systemd   /kubepods.slice/…/kubepods-burstable-pod<UID, with _>.slice/cri-containerd-<ID>.scope
//	          (crio-<ID>.scope, docker-<ID>.scope)
//	both      /…/kubepods-burstable-pod<UID, with _>.slice:cri-containerd:<ID>, if the kubelet uses the driver
//	          systemd, and the runtime takes the path for a directory
func parsePath(path string) (o Owner) {
	for element := range strings.FieldsFuncSeq(path, func(r rune) bool { return r == '/' || r == ':' }) {
		if o.Pod == "" {
			o.Pod = podOf(element)
			continue
		}
		if o.Container = containerOf(element); o.Container != "" {
			return o
		}
	}
	return o
}

// podOf returns the UID of the pod whose control group has this name, or an empty string.
func podOf(element string) string {
	name, systemd := strings.CutSuffix(element, ".slice")
	if systemd {
		at := strings.LastIndex(name, "-pod")
		if at < 0 {
			return ""
		}
		return uid(strings.ReplaceAll(name[at+len("-pod"):], "_", "-"))
	}
	name, ok := strings.CutPrefix(name, "pod")
	if !ok {
		return ""
	}
	return uid(name)
}

// uid returns s if it has the form of a pod's UID, and otherwise an empty string. A UID has 32 hexadecimal
// digits, in groups with hyphens between them or, for static pods, without hyphens.
func uid(s string) string {
	digits := strings.ReplaceAll(s, "-", "")
	if len(digits) != 32 || !hexadecimal(digits) {
		return ""
	}
	return s
}

// containerOf returns the ID of the container whose control group has this name, or an empty string. An ID has 64
// hexadecimal digits. containerOf ignores CRI-O's monitor (crio-conmon-<ID>).
func containerOf(element string) string {
	name, _ := strings.CutSuffix(element, ".scope")
	for _, prefix := range []string{"cri-containerd-", "crio-", "docker-"} {
		if rest, ok := strings.CutPrefix(name, prefix); ok {
			name = rest
			break
		}
	}
	if len(name) != 64 || !hexadecimal(name) {
		return ""
	}
	return name
}

func hexadecimal(s string) bool {
	return strings.Trim(s, "0123456789abcdef") == ""
}
