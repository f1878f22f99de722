// Package shm cleans a /dev/shm that containers share. It removes files once no container remains that could
// have created them.
package shm
