package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumem/gpumem/test/images"
)

// An entry is one file of an archive.
type entry struct {
	name, source string
	mode         fs.FileMode
}

// writeArchive writes files to a compressed tar, sorted and without times.
func writeArchive(name string, entries []entry) error {
	var out bytes.Buffer
	compressed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range entries {
		content, err := os.ReadFile(e.source)
		if err != nil {
			return err
		}
		if err := images.WriteEntry(archive, e.name, e.mode, content); err != nil {
			return err
		}
	}
	if err := archive.Close(); err != nil {
		return err
	}
	if err := compressed.Close(); err != nil {
		return err
	}
	return os.WriteFile(name, out.Bytes(), 0o644)
}

// chartEntries returns the files of a chart as its package has them: without
// those that .helmignore names.
func chartEntries(chart string) ([]entry, error) {
	ignored, err := os.ReadFile(filepath.Join(chart, ".helmignore"))
	if err != nil {
		return nil, err
	}
	skip := []string{".helmignore"}
	for line := range strings.Lines(string(ignored)) {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
			skip = append(skip, strings.Trim(line, "/"))
		}
	}
	var entries []entry
	err = filepath.WalkDir(chart, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		inside, err := filepath.Rel(chart, path)
		switch {
		case err != nil:
			return err
		case slices.Contains(skip, inside) && d.IsDir():
			return filepath.SkipDir
		case !d.IsDir() && !slices.Contains(skip, inside):
			entries = append(entries, entry{name: filepath.Base(chart) + "/" + filepath.ToSlash(inside), source: path, mode: 0o644})
		}
		return nil
	})
	return entries, err
}

// sum returns the SHA-256 of a file, in hexadecimal digits.
func sum(name string) (string, error) {
	content, err := os.ReadFile(name)
	return fmt.Sprintf("%x", sha256.Sum256(content)), err
}

// writeSums writes the checksums of all files of a folder, as sha256sum -c reads
// them.
func writeSums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var out strings.Builder
	for _, f := range files {
		if f.Name() == sumsFile || f.IsDir() {
			continue
		}
		s, err := sum(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&out, "%s  %s\n", s, f.Name())
	}
	return os.WriteFile(filepath.Join(dir, sumsFile), []byte(out.String()), 0o644)
}

const sumsFile = "SHA256SUMS"
