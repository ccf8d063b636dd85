# Language level, warnings, sanitizers.  `sparring_warnings` is linked by every target of ours and by no
# generated code; `sparring_base_flags` by everything.

set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release)
endif()

option(SPARRING_WERROR "Treat warnings as errors" OFF)
option(SPARRING_COVERAGE "Build with gcov instrumentation" OFF)
set(SPARRING_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them")
set(SPARRING_LINKER "" CACHE STRING "Linker, as -fuse-ld= takes it, where there is one; empty: the compiler's own")

# Assertions state programmer contracts and stay on in every build type.
# What is measured is the code that is tested, so release has dev's -O2; kernels ask for -O3 themselves.
string(REPLACE "-DNDEBUG" "" CMAKE_C_FLAGS_RELWITHDEBINFO "${CMAKE_C_FLAGS_RELWITHDEBINFO}")
string(REPLACE "-O3 -DNDEBUG" "-O2" CMAKE_C_FLAGS_RELEASE "${CMAKE_C_FLAGS_RELEASE}")

add_library(sparring_base_flags INTERFACE)
target_compile_definitions(sparring_base_flags INTERFACE _GNU_SOURCE
    SPARRING_VERSION="${PROJECT_VERSION}")
target_include_directories(sparring_base_flags INTERFACE ${PROJECT_SOURCE_DIR})
# The same source must round the same way in server and worker, whatever the vector width.  Flags that nvcc
# does not know are for C and C++ only.
target_compile_options(sparring_base_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off -fno-math-errno>)

# Kernels are compiled once per vector width (common/tensor/simd.h); other processors have one width.
include(CheckCSourceCompiles)
check_c_source_compiles("#ifndef __x86_64__\n#error\n#endif\nint main(void) { return 0; }" SPARRING_SIMD_X86)
set(SPARRING_SIMD_LEVELS baseline)
if(SPARRING_SIMD_X86)
    target_compile_definitions(sparring_base_flags INTERFACE SPARRING_SIMD_X86)
    list(APPEND SPARRING_SIMD_LEVELS avx2 avx512)
    set(SPARRING_SIMD_FLAGS_avx2 -mavx2)
    set(SPARRING_SIMD_FLAGS_avx512 -mavx512f -mavx512bw -mavx512dq -mavx512vl -mprefer-vector-width=512)
endif()
# A quicker linker matters where hundreds of tests are linked.
if(SPARRING_LINKER)
    include(CheckLinkerFlag)
    check_linker_flag(C "-fuse-ld=${SPARRING_LINKER}" SPARRING_HAVE_LINKER)
    if(SPARRING_HAVE_LINKER)
        add_link_options($<$<LINK_LANGUAGE:C,CXX>:-fuse-ld=${SPARRING_LINKER}>)
    endif()
endif()
if(SPARRING_SANITIZE)
    target_compile_options(sparring_base_flags INTERFACE
        $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${SPARRING_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all>
        # The runtime of these two checks is in C++ programs only, and ours are C: they could not load a module with it.
        $<$<COMPILE_LANG_AND_ID:CXX,Clang>:-fno-sanitize=vptr,function>)
    target_link_options(sparring_base_flags INTERFACE -fsanitize=${SPARRING_SANITIZE})
    if(SPARRING_SANITIZE MATCHES "address" AND CMAKE_C_COMPILER_ID STREQUAL "Clang")
        target_compile_definitions(sparring_base_flags INTERFACE __SANITIZE_ADDRESS__) # GCC's name for it
    endif()
endif()
if(SPARRING_COVERAGE)
    target_compile_options(sparring_base_flags INTERFACE $<$<COMPILE_LANGUAGE:C,CXX>:--coverage>)
    target_link_options(sparring_base_flags INTERFACE --coverage)
endif()

add_library(sparring_warnings INTERFACE)
target_link_libraries(sparring_warnings INTERFACE sparring_base_flags)
target_compile_options(sparring_warnings INTERFACE
    $<$<COMPILE_LANGUAGE:C>:-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wvla -Wmissing-prototypes
    -Wstrict-prototypes -Wwrite-strings -Wcast-qual -Wundef -Wdouble-promotion -Wformat=2
    -Wimplicit-fallthrough>
    $<$<AND:$<COMPILE_LANGUAGE:C>,$<BOOL:${SPARRING_WERROR}>>:-Werror>)
if(SPARRING_SANITIZE AND CMAKE_C_COMPILER_ID STREQUAL "Clang")
    # An instrumented loop need not become vector code.
    target_compile_options(sparring_warnings INTERFACE -Wno-pass-failed)
endif()

# sparring_simd_sources(VARIABLE NAME FILE): compile FILE once per vector width; VARIABLE gets the objects, to
# stand among a library's SOURCES.  -O3: the vectoriser of -O2 leaves most loops alone; -fno-trapping-math: no
# one looks at the processor's floating-point flags, and a loop with a comparison may become vector code.
function(sparring_simd_sources variable name file)
    set(objects)
    foreach(level ${SPARRING_SIMD_LEVELS})
        add_library(${name}_${level} OBJECT ${file})
        target_link_libraries(${name}_${level} PRIVATE sparring_warnings)
        target_compile_definitions(${name}_${level} PRIVATE SIMD_LEVEL=${level})
        target_compile_options(${name}_${level} PRIVATE -O3 -fno-trapping-math ${SPARRING_SIMD_FLAGS_${level}})
        list(APPEND objects $<TARGET_OBJECTS:${name}_${level}>)
    endforeach()
    set(${variable} ${objects} PARENT_SCOPE)
endfunction()

# sparring_library(NAME SOURCES... [LINK targets...] [PUBLIC headers...]): one folder as a static library with the
# warnings on.  PUBLIC: the headers that other folders may include (tests/support/structure); none named: all but
# *_internal.h.  It links only libraries that were defined before it, so no two depend on each other.  The target `isolated` links each
# one as a shared library with what it declares and nothing else: static libraries hide a missing declaration.
add_custom_target(isolated)
file(CONFIGURE OUTPUT ${PROJECT_BINARY_DIR}/isolated.c CONTENT "typedef int isolated;\n")
function(sparring_library name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK;PUBLIC")
    foreach(library ${arg_LINK})
        if(library MATCHES "^sparring_" AND NOT TARGET ${library})
            message(FATAL_ERROR "${name} links ${library}, which is defined after it, or nowhere")
        endif()
    endforeach()
    add_library(${name} STATIC ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE sparring_warnings PUBLIC sparring_base_flags ${arg_LINK})
    add_library(${name}_isolated SHARED EXCLUDE_FROM_ALL ${PROJECT_BINARY_DIR}/isolated.c)
    target_link_libraries(${name}_isolated PRIVATE "$<LINK_LIBRARY:WHOLE_ARCHIVE,${name}>")
    target_link_options(${name}_isolated PRIVATE -Wl,-z,defs)
    set_target_properties(${name}_isolated PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/isolated)
    add_dependencies(isolated ${name}_isolated)
endfunction()

# sparring_relocatable(PROGRAM): it finds its libraries in ../lib, wherever that lies, if they are there
# (experiments/bundle), else where the system has them.  The old kind of path serves the libraries' own
# libraries, too.
function(sparring_relocatable program)
    set_target_properties(${program} PROPERTIES BUILD_RPATH "$ORIGIN/../lib" INSTALL_RPATH "$ORIGIN/../lib")
    target_link_options(${program} PRIVATE -Wl,--disable-new-dtags)
endfunction()

# sparring_program(NAME SOURCES... LINK targets...): an installed executable in build/<preset>/bin.
function(sparring_program name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINK")
    add_executable(${name} ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE sparring_warnings ${arg_LINK})
    sparring_relocatable(${name})
    install(TARGETS ${name} RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endfunction()

# sparring_unit(NAME): NAME.in as a unit of systemd, with the paths of the prefix that it is installed under.
# systemd looks for units in lib/systemd/system of /usr and /usr/local.
function(sparring_unit name)
    install(CODE "
        set(BINDIR \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
        set(SYSCONFDIR \"\${CMAKE_INSTALL_PREFIX}/etc\")
        if(CMAKE_INSTALL_PREFIX STREQUAL /usr)
            set(SYSCONFDIR /etc)
        endif()
        configure_file(\"${CMAKE_CURRENT_SOURCE_DIR}/${name}.in\" \"${CMAKE_CURRENT_BINARY_DIR}/${name}\" @ONLY)")
    install(FILES ${CMAKE_CURRENT_BINARY_DIR}/${name} DESTINATION lib/systemd/system)
endfunction()
