# Required packages end the configuration when missing (`./bootstrap` installs them); each optional one
# gets one line that says what it gives or what leaving it out costs.

find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(ZLIB REQUIRED)
# The core's own version, not the release's.  By pkg-config itself: pkg_check_modules asks it a dozen times, and
# gRPC's list of libraries takes it a second each time.
execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --cflags --libs "grpc >= 29"
    OUTPUT_VARIABLE grpc_flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
separate_arguments(grpc_flags UNIX_COMMAND "${grpc_flags}")
set(grpc_libraries ${grpc_flags})
list(FILTER grpc_flags INCLUDE REGEX "^-[ID]")
list(FILTER grpc_libraries EXCLUDE REGEX "^-[ID]")
add_library(SPARRING::GRPC INTERFACE IMPORTED)
target_compile_options(SPARRING::GRPC INTERFACE ${grpc_flags})
target_link_libraries(SPARRING::GRPC INTERFACE ${grpc_libraries})
list(FILTER grpc_libraries INCLUDE REGEX "^-L")
list(TRANSFORM grpc_libraries REPLACE "^-L" "-Wl,-rpath,")
target_link_options(SPARRING::GRPC INTERFACE ${grpc_libraries})
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c>=1.4.0)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(YAML REQUIRED IMPORTED_TARGET yaml-0.1)
# Debian's oneDNN has no file for pkg-config, and its CMake package wants OpenCL's headers.
find_path(ONEDNN_INCLUDE_DIR oneapi/dnnl/dnnl.h REQUIRED)
find_library(ONEDNN_LIBRARY dnnl REQUIRED)
add_library(SPARRING::ONEDNN INTERFACE IMPORTED)
target_include_directories(SPARRING::ONEDNN SYSTEM INTERFACE ${ONEDNN_INCLUDE_DIR})
target_link_libraries(SPARRING::ONEDNN INTERFACE ${ONEDNN_LIBRARY} gomp)
find_program(PROTOC protoc REQUIRED)
find_program(PROTOC_GEN_C protoc-gen-c REQUIRED)
if(BUILD_TESTING OR NOT DEFINED BUILD_TESTING)
    pkg_check_modules(CHECK REQUIRED IMPORTED_TARGET check)
endif()

function(sparring_report_optional name found gain loss)
    if(found)
        message(STATUS "${name}: found, ${gain}")
    else()
        message(STATUS "${name}: not found, ${loss}")
    endif()
endfunction()

# CUDA: SPARRING_CUDA is AUTO (use it where nvcc is), ON (fail without it), OFF, or EMULATED: where nvcc is, its
# module is not built, but the emulated one of the tests, of the same sources, with the C++ compiler.
set(SPARRING_CUDA AUTO CACHE STRING "Build the CUDA module: AUTO, ON, OFF or EMULATED")
set(SPARRING_HAVE_CUDA FALSE)
if(NOT SPARRING_CUDA STREQUAL "OFF")
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
        if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
            set(CMAKE_CUDA_ARCHITECTURES 80 90)
        endif()
        enable_language(CUDA)
        find_package(CUDAToolkit REQUIRED)
        set(SPARRING_HAVE_CUDA TRUE)
    elseif(SPARRING_CUDA STREQUAL "ON")
        message(FATAL_ERROR "SPARRING_CUDA=ON, but no CUDA compiler (nvcc) was found")
    endif()
endif()
set(SPARRING_CUDA_GAIN "the worker's CUDA module is built")
if(SPARRING_CUDA STREQUAL "EMULATED")
    set(SPARRING_CUDA_GAIN "but of the worker's CUDA module only the emulated one is built")
endif()
sparring_report_optional("CUDA" "${SPARRING_HAVE_CUDA}" "${SPARRING_CUDA_GAIN}" "workers train on the CPU only")

set(SPARRING_CUDA_HINTS ${CUDAToolkit_INCLUDE_DIRS} /usr/local/cuda/include)
find_path(CUDNN_INCLUDE_DIR cudnn.h HINTS ${SPARRING_CUDA_HINTS})
find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${SPARRING_CUDA_HINTS})
sparring_report_optional("cuDNN" "${CUDNN_INCLUDE_DIR}"
    "the CUDA module has convolution, where the library is at run time" "no convolution layers on CUDA")
sparring_report_optional("NCCL" "${NCCL_INCLUDE_DIR}"
    "the CUDA module holds the nccl backend" "no nccl backend; GPUs synchronise through host memory")

pkg_check_modules(MICROHTTPD IMPORTED_TARGET libmicrohttpd>=0.9.71) # enum MHD_Result
sparring_report_optional("libmicrohttpd" "${MICROHTTPD_FOUND}"
    "servers can show their metrics to Prometheus" "no metrics page; the Stats call is there")

find_package(MPI QUIET COMPONENTS C)
set(SPARRING_HAVE_MPI ${MPI_C_FOUND})
sparring_report_optional("MPI" "${SPARRING_HAVE_MPI}"
    "the mpi backend is built, a peer for benchmarks" "no mpi backend to compare with")

set(SPARRING_HAVE_GLOO FALSE)
include(CheckLanguage)
check_language(CXX)
find_path(GLOO_INCLUDE_DIR gloo/allreduce.h)
find_library(GLOO_LIBRARY gloo)
if(CMAKE_CXX_COMPILER AND GLOO_INCLUDE_DIR AND GLOO_LIBRARY)
    enable_language(CXX)
    set(SPARRING_HAVE_GLOO TRUE)
endif()
sparring_report_optional("Gloo" "${SPARRING_HAVE_GLOO}"
    "the gloo backend is built, a peer for benchmarks" "no gloo backend to compare the ring with")
