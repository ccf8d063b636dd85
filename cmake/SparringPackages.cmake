# Debian packages: `cpack` in the folder of a build (docs/install.md).  An install rule names its package by its
# COMPONENT; without one it is that of the folder, CMAKE_INSTALL_DEFAULT_COMPONENT_NAME.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_CONTACT "" CACHE STRING "The maintainer of the packages (default: the author of the last commit)")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "") # each package has its own
set(CPACK_VERBATIM_VARIABLES ON)
set(CPACK_STRIP_FILES ON)
set(CPACK_SET_DESTDIR ON) # so that units get the paths of /usr, not of the folder where cpack collects files
set(CPACK_INSTALL_PREFIX /usr)

set(CPACK_COMPONENTS_ALL sparring server doc)
if(TARGET sparring_mpi)
    list(APPEND CPACK_COMPONENTS_ALL mpi)
endif()
if(TARGET sparring_cuda AND NOT SPARRING_CUDA STREQUAL "EMULATED")
    list(APPEND CPACK_COMPONENTS_ALL cuda)
endif()

# CMake script of cpack, before and after it installs each package in a folder of its own.
set(CPACK_PROJECT_CONFIG_FILE ${CMAKE_CURRENT_LIST_DIR}/debian/control.cmake)
set(CPACK_PRE_BUILD_SCRIPTS ${CMAKE_CURRENT_LIST_DIR}/debian/finish.cmake)
include(CPack)
