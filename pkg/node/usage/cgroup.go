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

// Owner is the container that a process is in.
type Owner struct {
	Pod       string // UID; empty: the process is in no pod
	Container string // ID; empty: it is the pod's, and no container's
}

// ErrGone says that a process is not there.
var ErrGone = errors.New("the process is gone")

// Proc is a proc file system.
type Proc struct{ Root string }

// Owner returns the container of a process of the host.
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

// parseCgroups reads /proc/PID/cgroup (cgroups(7)): a line for each hierarchy,
// "ID:controllers:path". Every hierarchy has the process in the same container,
// if it has it in one.
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

// parsePath reads the path of a control group: the element of the pod, then that
// of the container, below which the container may have made its own.
//
//	cgroupfs  /kubepods/burstable/pod<UID>/<ID>
//	systemd   /kubepods.slice/…/kubepods-burstable-pod<UID, with _>.slice/cri-containerd-<ID>.scope
//	          (crio-<ID>.scope, docker-<ID>.scope)
//	both      /…/kubepods-burstable-pod<UID, with _>.slice:cri-containerd:<ID>, where the kubelet has the driver
//	          systemd, and the runtime takes its path for a folder
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

// podOf returns the UID in the name of a pod's control group.
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

// uid returns what is a pod's UID: 32 hexadecimal digits, in groups or, for
// static pods, without.
func uid(s string) string {
	digits := strings.ReplaceAll(s, "-", "")
	if len(digits) != 32 || !hexadecimal(digits) {
		return ""
	}
	return s
}

// containerOf returns the ID in the name of a container's control group: 64
// hexadecimal digits. CRI-O's monitor (crio-conmon-<ID>) is no container.
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
