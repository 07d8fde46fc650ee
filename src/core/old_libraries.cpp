// What headers of newer compilers take from libstdc++ and glibc and what the libraries that torch's own wheels run with
// (glibc 2.28, GCC 8) do not have. The libraries export nothing, so these stay theirs.
#include <features.h>

#include <new>
#include <sstream>
#include <string>

#if defined(__GLIBC__) && defined(_GLIBCXX_RELEASE) && __has_include(<sys/single_threaded.h>)
#include <sys/single_threaded.h>

extern "C" {
char __libc_single_threaded = 0;  // of std::shared_ptr, which then always counts atomically
}
#endif

#if defined(_GLIBCXX_RELEASE) && _GLIBCXX_RELEASE >= 11
void std::__throw_bad_array_new_length() { throw std::bad_array_new_length(); }

template std::ostringstream::basic_ostringstream();
template std::stringstream::basic_stringstream();
template std::string std::stringbuf::str() const&;
template std::string std::stringbuf::str() &&;
#endif
