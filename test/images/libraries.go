package images

import (
	"bufio"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// SharedLibraries returns the entries for what the named programs and shared
// libraries are linked to: the dynamic loader and every library, from this
// machine, at the paths where the loader looks for them. A static program needs
// none.
func SharedLibraries(names ...string) ([]File, error) {
	var paths []string
	for _, name := range names {
		var stderr bytes.Buffer
		cmd := exec.Command("ldd", name)
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		var exit *exec.ExitError
		if errors.As(err, &exit) && strings.Contains(stderr.String(), "not a dynamic executable") {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w: %s", name, err, bytes.TrimSpace(stderr.Bytes()))
		}
		found, err := parseLdd(out)
		if err != nil {
			return nil, fmt.Errorf("ldd %s: %w", name, err)
		}
		paths = append(paths, found...)
	}
	slices.Sort(paths)
	var files []File
	for _, path := range slices.Compact(paths) {
		files = append(files, File{Path: path, Source: path})
	}
	return files, nil
}

// ForeignLibraries returns the same for a program of another architecture. Debian's
// cross compiler for it has its libraries, and the loader looks for them where Debian
// has them on a machine of that architecture ("aarch64-linux-gnu").
func ForeignLibraries(name, triplet string) ([]File, error) {
	from := "/usr/" + triplet + "/lib/"
	interpreter, missing, err := linkedTo(name)
	if err != nil || interpreter == "" {
		return nil, err
	}
	loader := filepath.Base(interpreter)
	files := []File{{Path: interpreter, Source: from + loader}}
	for done := []string{loader}; len(missing) > 0; missing = missing[1:] {
		library := missing[0]
		if slices.Contains(done, library) {
			continue
		}
		done = append(done, library)
		files = append(files, File{Path: "/lib/" + triplet + "/" + library, Source: from + library})
		_, more, err := linkedTo(from + library)
		if err != nil {
			return nil, fmt.Errorf("%s needs %s: %w", filepath.Base(name), library, err)
		}
		missing = append(missing, more...)
	}
	return files, nil
}

// linkedTo returns the loader that a program asks for, if any, and the names of the
// libraries that it or a library needs.
func linkedTo(name string) (interpreter string, libraries []string, err error) {
	f, err := elf.Open(name)
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	if section := f.Section(".interp"); section != nil {
		text, err := section.Data()
		if err != nil {
			return "", nil, fmt.Errorf("%s: %w", name, err)
		}
		interpreter = strings.TrimRight(string(text), "\x00")
	}
	libraries, err = f.ImportedLibraries()
	return interpreter, libraries, err
}

// parseLdd returns the paths in what ldd printed. Its lines are
//
//	linux-vdso.so.1 (0x00007ffc)
//	libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f3e)
//	/lib64/ld-linux-x86-64.so.2 (0x00007f3f)
//	libmissing.so.1 => not found
func parseLdd(out []byte) ([]string, error) {
	var paths []string
	for lines := bufio.NewScanner(bytes.NewReader(out)); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		name, target, arrow := strings.Cut(line, " => ")
		if !arrow {
			target = line
		}
		if target == "not found" {
			return nil, fmt.Errorf("%s was not found", name)
		}
		if path, _, ok := strings.Cut(target, " (0x"); ok && strings.HasPrefix(path, "/") {
			paths = append(paths, path)
		}
	}
	return paths, nil
}
