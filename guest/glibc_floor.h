// SPDX-License-Identifier: Apache-2.0
// guest/glibc_floor.h: included before every file of the guest library (-include). Binds functions
// that newer C libraries gave new versions to the oldest version that has the same meaning, so that
// the library loads from glibc 2.28 on (RHEL 8, Ubuntu 20.04). vmsock/check_freestanding.cmake
// checks the result.
#ifndef CONSORT_GUEST_GLIBC_FLOOR_H_
#define CONSORT_GUEST_GLIBC_FLOOR_H_

// Moved from libpthread into libc by glibc 2.34, under their old version too.
__asm__(".symver pthread_create, pthread_create@GLIBC_2.2.5");
__asm__(".symver pthread_once, pthread_once@GLIBC_2.2.5");
__asm__(".symver pthread_key_create, pthread_key_create@GLIBC_2.2.5");
__asm__(".symver pthread_setspecific, pthread_setspecific@GLIBC_2.2.5");
__asm__(".symver pthread_getspecific, pthread_getspecific@GLIBC_2.2.5");
__asm__(".symver pthread_attr_setdetachstate, pthread_attr_setdetachstate@GLIBC_2.2.5");
__asm__(".symver pthread_attr_setstacksize, pthread_attr_setstacksize@GLIBC_2.2.5");
__asm__(".symver pthread_join, pthread_join@GLIBC_2.2.5");
__asm__(".symver pthread_mutex_trylock, pthread_mutex_trylock@GLIBC_2.2.5");
__asm__(".symver pthread_sigmask, pthread_sigmask@GLIBC_2.2.5");

#endif  // CONSORT_GUEST_GLIBC_FLOOR_H_
